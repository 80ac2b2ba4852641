"""``python -m kvreg``."""

from kvreg.cli import main

if __name__ == "__main__":
    main()
