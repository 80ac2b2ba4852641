"""The commands of `registry`, one module a purpose."""
