"""The commands of `registry` beyond those of `registry.cli`, one module a purpose."""
