"""Records this host into the gallery: ``python tests/data/facts/record.py FILE``.

The interpreter is the host's own; the client comes from this checkout and is kept out of what is
recorded. It needs click, packaging, tqdm and urllib3, as the client does.
"""

import sys
from pathlib import Path

CLIENT = str(Path(__file__).resolve().parents[3] / "kvreg" / "src")


def main() -> None:
    """Collect and save."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    path = list(sys.path)
    sys.path.append(CLIENT)
    from kvreg.facts import collect
    from kvreg.facts.files import save

    facts = collect()
    sys.path[:] = path
    save(facts, Path(sys.argv[1]))
    print(f"{facts.digest} in {sys.argv[1]}")


if __name__ == "__main__":
    main()
