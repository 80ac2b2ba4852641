"""Memory stays flat whatever a blob's size: measured in processes of their own."""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from kvreg.model.digest import sha256_file
from tests.support.distribution import running_distribution

MIB = 1024 * 1024
LIMIT = 64 * MIB

_SCRIPT = """
import json, sys
from pathlib import Path
from kvreg.model.oci import Descriptor
from kvreg.reference import parse_reference
from registry.remote import Remote
from registry.layout import Layout
from registry.store import open_store
from registry.upload import UploadPolicy

what, path, target, size, digest = sys.argv[1:]

def peak():
    # Not getrusage: its maximum is handed down from the process that started this one.
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024

before = peak()
blob = Descriptor("application/octet-stream", digest, int(size))
if what == "chunks":
    Remote(parse_reference(target), upload=UploadPolicy(stream_bytes=0)).push_blob(Path(path), blob)
elif what == "push":
    open_store(target).push_blob(Path(path), blob)
else:
    open_store(target).fetch_blob(blob, Path(path))
print(json.dumps({"before": before, "peak": peak()}))
"""


def measure(what: str, path: Path, target: str, size: int, digest: str) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, what, str(path), target, str(size), digest],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def marked_file(path: Path, size: int) -> str:
    """A sparse file with a mark in each part; its digest."""
    with path.open("wb") as stream:
        for number in range(30):
            stream.seek(number * size // 30)
            stream.write(b"%d" % number)
        stream.truncate(size)
    return sha256_file(path)


def test_a_large_blob_needs_little_memory() -> None:
    # A directory of its own, because pytest keeps those of its last runs.
    with TemporaryDirectory() as folder, running_distribution(Path(folder) / "r") as running:
        large, smaller = Path(folder) / "large", Path(folder) / "smaller"
        whole = (300 * MIB, marked_file(large, 300 * MIB))
        part = (100 * MIB, marked_file(smaller, 100 * MIB))
        remote = f"{running.host}/memory/test"
        fetched = Path(folder) / "fetched"
        measured = {
            "push in one request": measure("push", large, remote, *whole),
            "push in chunks": measure("chunks", smaller, remote, *part),
            "push to a layout": measure("push", smaller, f"oci-layout:{folder}/layout", *part),
            "fetch": measure("fetch", fetched, remote, *part),
        }
        assert sha256_file(fetched) == part[1]
    print(json.dumps(measured))
    too_much = {name: found for name, found in measured.items() if found["peak"] >= LIMIT}
    assert too_much == {}
