"""What a build container sees: the same whatever the umask and the modes of a checkout."""

import hashlib
import os

from builder.cache import InputCache
from builder.inputs import Input
from builder.recipes.model import Recipe, Sources
from builder.workspace import prepare


def test_modes_are_the_same_under_any_umask(tmp_path):
    data = b"locked"
    sha256 = hashlib.sha256(data).hexdigest()
    cache = InputCache(tmp_path / "cache")
    cache.put_bytes(data, sha256)
    item = Input("a", "1", "sdist", "a-1.tar.gz", len(data), sha256)
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    for name, mode in (("run.sh", 0o700), ("sub/file.c", 0o600)):
        (tree / name).write_text(name)
        (tree / name).chmod(mode)
    made = Recipe("demo", lambda profile: Sources(), files={"src": tree, "x.py": tree / "run.sh"})
    found = []
    for mask in (0o022, 0o077):
        before = os.umask(mask)
        try:
            space = prepare(tmp_path / f"space{mask}", made, [item], cache, {"a": 1})
        finally:
            os.umask(before)
        found.append(
            {
                path.relative_to(folder).as_posix(): path.stat().st_mode & 0o7777
                for folder in (space.inputs, space.recipe)
                for path in (folder, *folder.rglob("*"))
            }
        )
    assert found[0] == found[1]
    assert found[0] == {
        ".": 0o755,
        "a-1.tar.gz": 0o444,
        "parameters.json": 0o644,
        "src": 0o755,
        "src/run.sh": 0o755,
        "src/sub": 0o755,
        "src/sub/file.c": 0o644,
        "x.py": 0o644,
    }
