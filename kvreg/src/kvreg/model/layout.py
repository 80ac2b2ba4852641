"""Where a directory keeps the blobs of an OCI image layout.

A layout as the image-spec has it keeps them in ``blobs/sha256``. A *packed* one (``registry pack``)
keeps the same bytes beside its ``index.json``, because upload forms such as Kaggle's drop
directories: what has no ``blobs`` directory is read as packed.

>>> packed_name("sha256:" + "0" * 64) == "sha256-" + "0" * 64
True
"""

from pathlib import Path

from kvreg.model.digest import parse_digest

BLOBS = "blobs"
PACKING_LIST = "packed.json"
"""The file of a packed layout that lists every other one with its size and sha256."""


def packed_name(digest: str) -> str:
    """The file name of a blob in a packed layout: no colon, no extension, no directory."""
    return f"sha256-{parse_digest(digest)}"


def is_packed(root: Path) -> bool:
    """Whether the layout in `root` keeps its blobs beside its index."""
    return not (root / BLOBS).is_dir()


def blob_file(root: Path, digest: str) -> Path:
    """Where the layout in `root` keeps the blob of `digest`, whether it is there or not."""
    if is_packed(root):
        return root / packed_name(digest)
    return root / BLOBS / "sha256" / parse_digest(digest)
