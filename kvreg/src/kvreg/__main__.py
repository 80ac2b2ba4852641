"""``python -m kvreg``."""

from kvreg.cli import run

if __name__ == "__main__":
    run()
