"""Is what we stage what pip installs? Compared file by file, for real wheels of many makes."""
