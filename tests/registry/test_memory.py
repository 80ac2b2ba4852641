"""Memory stays flat whatever a blob's size: measured in processes of their own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.distribution import Distribution

SIZE = 300 * 1024 * 1024
LIMIT = 64 * 1024 * 1024

_SCRIPT = """
import json, sys
from pathlib import Path
from kvreg.model.oci import Descriptor
from registry.remote import Remote
from registry.layout import Layout
from registry.store import open_store
from registry.upload import UploadPolicy
from kvreg.reference import parse_reference

what, path, target, size, digest = sys.argv[1:]
def peak():
    # Not getrusage: its maximum is handed down from the process that started this one.
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024

before = peak()
blob = Descriptor("application/octet-stream", digest, int(size))
policy = UploadPolicy(single_bytes=0) if what == "chunks" else None
with open_store(target) as store:
    if isinstance(store, Remote) and policy:
        store = Remote(parse_reference(target), upload=policy)
    if what == "fetch":
        store.fetch_blob(blob, Path(path))
    else:
        store.push_blob(Path(path), blob)
print(json.dumps({"before": before, "peak": peak()}))
"""


def measure(what: str, path: Path, target: str, digest: str) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, what, str(path), target, str(SIZE), digest],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A sparse file with a mark in each part, and its digest."""
    from kvreg.model.digest import sha256_file

    path = tmp_path_factory.mktemp("large") / "blob"
    with path.open("wb") as stream:
        for number in range(30):
            stream.seek(number * SIZE // 30)
            stream.write(b"%d" % number)
        stream.truncate(SIZE)
    return path, sha256_file(path)


def test_a_large_blob_needs_little_memory(
    large: tuple[Path, str], distribution: Distribution, tmp_path: Path
) -> None:
    path, digest = large
    measured = {
        "push in one request": measure("push", path, f"{distribution.host}/memory/one", digest),
        "push in chunks": measure("chunks", path, f"{distribution.host}/memory/many", digest),
        "push to a layout": measure("push", path, f"oci-layout:{tmp_path}/layout", digest),
        "fetch": measure("fetch", tmp_path / "out", f"{distribution.host}/memory/one", digest),
    }
    print(json.dumps(measured))
    assert (tmp_path / "out").stat().st_size == SIZE
    too_much = {name: found for name, found in measured.items() if found["peak"] >= LIMIT}
    assert too_much == {}
