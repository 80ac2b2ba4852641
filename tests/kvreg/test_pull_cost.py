"""What a pull may cost: memory that does not grow with the wheel, imports that a command needs."""

import json
import random
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kvreg.home import Home
from tests.kvreg.conftest import Published
from tests.support.faults import faulty_registry
from tests.support.layouts import runtime_manifest, write_layout
from tests.support.wheels import LINUX_TAG, record_of, wheel_files

MIB = 1 << 20
LIMIT = 128 * MIB

_PULL = """
import json, sys
from pathlib import Path
from kvreg.home import Home
from kvreg.pull import pull
from kvreg.reference import parse_reference
from kvreg.sources import open_source

digest, reference, home = sys.argv[1:]
pulled = pull(digest, lambda: open_source(parse_reference(reference)), None, Home(Path(home)))
# Not getrusage: its maximum is handed down from the process that started this one.
peak = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
print(json.dumps({"peak": peak, "bytes": pulled.runtime.bytes, "received": pulled.work.received}))
"""


def measure(digest, reference, home):
    done = subprocess.run(
        [sys.executable, "-c", _PULL, digest, reference, str(home)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def huge(publish, tmp_path):
    """An artifact whose wheel has 49 MiB, of which 48 do not compress, and unpacks to 300."""
    found = publish()
    noise = random.Random(1).randbytes(24 * MIB)
    files = wheel_files(extra={"demo_pkg/a.so": noise, "demo_pkg/b.so": bytes(252 * MIB)})
    files["demo_pkg/c.so"] = noise[::-1]
    files["demo_pkg-1.2+cu128.sm75.dist-info/RECORD"] = record_of(
        files, "demo_pkg-1.2+cu128.sm75.dist-info/RECORD"
    )
    wheel = found.wheel.parent / f"demo_pkg-1.2+cu128.sm75-{LINUX_TAG}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files.items():
            way = zipfile.ZIP_DEFLATED if name.endswith("b.so") else zipfile.ZIP_STORED
            archive.writestr(name, data, way, compresslevel=1)
    return put(found, wheel)


def put(published: Published, wheel: Path) -> Published:
    """Replace the published artifact by that of another wheel."""
    manifest = runtime_manifest(published.profile, [(wheel, "native")])
    (published.layout / "index.json").unlink()
    write_layout(published.layout, published.profile, [(wheel, "native")], manifest=manifest)
    return Published(published.profile, wheel, manifest, published.layout, published.home)


def test_memory_does_not_grow_with_the_wheel(huge, tmp_path):
    layout = f"oci-layout:{huge.layout}"
    found = {"layout": measure(huge.profile.digest, layout, tmp_path / "one")}
    with faulty_registry(huge.layout) as server:
        found["registry"] = measure(huge.profile.digest, server.reference, tmp_path / "two")
    print(found)
    assert found["registry"]["received"] > 48 * MIB
    for what in found.values():
        assert what["bytes"] > 290 * MIB
        assert what["peak"] < LIMIT


def test_a_pull_of_what_is_there_imports_no_network_and_no_zip(published):
    published.pull()
    code = (
        "import sys; from kvreg.home import Home; from kvreg.pull import pull;"
        "from pathlib import Path;"
        "assert not pull(sys.argv[1], None, None, Home(Path(sys.argv[2]))).staged;"
        "print(sorted({'urllib3', 'zipfile', 'kvreg.making', 'isal', 'tqdm'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, published.profile.digest, str(published.home.root)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_and_the_package_import_little(tmp_path):
    code = (
        "import sys, kvreg; first = set(sys.modules); import kvreg.cli;"
        "heavy = {'urllib3', 'requests', 'numpy', 'torch', 'tqdm', 'packaging', 'zipfile'};"
        "print(sorted(heavy & set(sys.modules)), sorted({'click', 'email'} & first))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] []"
    assert not Home(tmp_path / "none").root.exists()
