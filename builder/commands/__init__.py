"""The commands of `builder`, one module each."""
