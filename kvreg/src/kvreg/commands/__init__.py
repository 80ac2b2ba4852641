"""The subcommands of ``kvreg``, one module each; `kvreg.cli` loads only the one that is run."""
