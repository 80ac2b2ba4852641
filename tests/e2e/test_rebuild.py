"""The published probe is rebuilt for real: the same, or it is said where it is not.

What may differ between two builds and must not matter differs here: the checkout's path, the number
of jobs, the clock, the umask, the host's name, and whether objects come from a cache.
"""

import json
import os
import re
import shutil
import subprocess
import zipfile
from base64 import urlsafe_b64encode
from hashlib import sha256
from pathlib import Path

import pytest

import builder
from builder import engine as engines
from builder.build import PYTHON
from builder.cache import InputCache
from builder.commands.rebuild import deliver
from builder.engine import Engine, Mount
from builder.jobs import Jobs
from builder.layout import Checkout
from builder.rebuild.making import How, rebuild
from builder.rebuild.published import read_published
from builder.record import wheel_facts
from builder.wheelfile import embed_sbom, read_embedded
from registry.describe import ANNOTATION_VERDICT, MEDIA_TYPE_VERDICT
from registry.layout import Layout
from tests.e2e.conftest import ROOT, TOOLCHAIN, Commands
from tests.support import workflows
from tests.support.toolchain import engine, toolchain_image

__all__ = ["engine", "toolchain_image"]

pytestmark = pytest.mark.engine

PROFILE = "t4-probe"
MODULE = "kvreg_probe/_native.abi3.so"
NO_ENGINE = "unix:///nonexistent/engine.sock"
LATER = 400 * 86400
CLOCK = r"""
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *t) {
    int failed = syscall(SYS_clock_gettime, id, t);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) t->tv_sec += LATER;
    return failed;
}
time_t time(time_t *out) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return out ? (*out = t.tv_sec) : t.tv_sec;
}
int gettimeofday(struct timeval *v, void *zone) {
    struct timespec t;
    int failed = clock_gettime(CLOCK_REALTIME, &t);
    v->tv_sec = t.tv_sec, v->tv_usec = t.tv_nsec / 1000;
    return failed;
}
"""


class LaterEngine(Engine):
    """Containers in which the clock is more than a year ahead, for every program with a libc of
    its own to ask; times of files stay the kernel's."""

    def __init__(self, real: Engine, folder: Path) -> None:
        super().__init__(real.client, real.address)
        source, library = folder / "clock.c", folder / "clock.so"
        source.write_text(CLOCK)
        command = ["gcc", "-shared", "-fPIC", f"-DLATER={LATER}", "-o", library, source]
        subprocess.run(command, check=True)
        preload = folder / "ld.so.preload"
        preload.write_text("/clock.so\n")
        for path in (library, preload):
            path.chmod(0o644)
        self.clock = [
            Mount(library, "/clock.so", read_only=True),
            Mount(preload, "/etc/ld.so.preload", read_only=True),
        ]

    def run(self, image_id, argv, *, mounts=(), **options):
        return super().run(image_id, argv, mounts=[*mounts, *self.clock], **options)


@pytest.fixture
def store(checkout, layout, tmp_path) -> Path:
    """A copy of the layout that the probe was published into."""
    shutil.copytree(checkout / "store", tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def elsewhere(tmp_path) -> Path:
    """The same checkout at another path."""
    root = tmp_path / "a folder far away" / "of another length"
    for name in ("profiles", "dockerfiles"):
        shutil.copytree(ROOT / name, root / name)
    return root


@pytest.fixture
def away(commands, elsewhere) -> Commands:
    """Commands in that checkout."""
    paths = {"KVREG_CHECKOUT": str(elsewhere), "KVREG_PROFILES": str(elsewhere / "profiles")}
    return Commands(elsewhere, commands.environment | paths)


def test_elsewhere_later_and_otherwise_it_is_the_same_to_the_byte(
    commands, built_probe, store, elsewhere, engine, toolchain_image, tmp_path, monkeypatch
):
    later = LaterEngine(engine, tmp_path)
    seen: list[str] = []
    probe = "import socket, time; print(socket.gethostname(), time.time())"
    monkeypatch.setattr(engines, "HOSTNAME", "another-machine")
    later.run(toolchain_image.image_digest, [PYTHON, "-c", probe], on_line=seen.append)
    host, now = seen[0].split()
    assert host == "another-machine"
    assert float(now) - (tmp_path / "clock.c").stat().st_mtime > LATER - 60
    opened = Layout(store)
    published = read_published(opened, PROFILE)
    mask = os.umask(0o077)
    try:
        done = rebuild(
            published,
            opened,
            Checkout(elsewhere),
            InputCache(),
            tmp_path / "rebuilt",
            How(Jobs(1, "requested"), offline=True),
            say=lambda text: None,
            engine=later,
        )
    finally:
        os.umask(mask)
    assert done.comparison.verdict == "identical", done.comparison.text()
    assert done.comparison.b.sha256 == built_probe["sha256"]
    assert done.changes == ()
    result = deliver(done, opened, tmp_path / "rebuilt")
    # Others see the verdict by its name.
    reference = f"oci-layout:{store}:{PROFILE}"
    assert "rebuild verdict: identical" in commands("registry", "show", reference).out
    assert "rebuild verdict: identical" in commands("registry", "verify", reference).out
    predicate = json.loads(Path(result["statement"]).read_text())["predicate"]
    found = predicate["environment"]
    assert (found["jobs"], found["network"]) == (1, "none")
    assert found["compileCache"] == {"allowed": False, "used": False, "counters": {}}
    assert found["toolchain"]["image"] == toolchain_image.image_digest
    assert predicate["from"]["recipe"]["digest"] == predicate["from"]["recipe"]["named"]


def test_the_workflow_rebuilds_what_is_published_until_there_is_a_verdict(
    store, elsewhere, built_probe, monkeypatch
):
    """Its steps as they are, cold, in a checkout that has only what they call."""
    workflows.lay_out(elsewhere)
    monkeypatch.setenv("KVREG_CHECKOUT", str(elsewhere))
    flow = workflows.load("rebuild.yml")
    inputs = {"registry": f"oci-layout:{store}"}
    digest = Layout(store).resolve(PROFILE).digest
    contexts = {"github": workflows.GITHUB, "inputs": inputs}
    contexts["matrix"] = {"profile": PROFILE, "artifact": digest}
    runner = workflows.Runner(flow, elsewhere, contexts)
    runner.run("rebuild", skip=("set up",))
    assert runner.kept("rebuild") == {"rebuild-verdict.json", "record.json", "build.log"}
    (verdict,) = (elsewhere / "dist").rglob("rebuild-verdict.json")
    predicate = json.loads(verdict.read_text())["predicate"]
    assert predicate["verdict"] == "identical"
    assert predicate["rebuilt"]["sha256"] == built_probe["sha256"]
    who = "https://ci.example.org/team/runtimes/.github/workflows/rebuild.yml"
    assert predicate["builder"]["id"] == who
    (referrer,) = Layout(store).referrers(digest, MEDIA_TYPE_VERDICT)
    assert referrer.annotations[ANNOTATION_VERDICT] == "identical"

    def waiting(**more: str) -> list[dict]:
        runner = workflows.Runner(flow, elsewhere, {"inputs": inputs | more})
        outputs = runner.run("matrix", skip=("set up",))
        found = json.loads(outputs["matrix"])["include"]
        assert outputs["count"] == str(len(found))
        return found

    assert waiting() == []
    (entry,) = waiting(again="true")
    assert contexts["matrix"].items() <= entry.items()
    wanted = re.findall(r"matrix\.(\w+)", (workflows.WORKFLOWS / "rebuild.yml").read_text())
    assert set(wanted) - {"outputs", "matrix"} <= set(entry)


def tamper(wheel: Path, epoch: int) -> None:
    """A bit of a string and one of the device code flipped, under a true RECORD and SBOM."""
    document = read_embedded(wheel)
    assert document is not None
    with zipfile.ZipFile(wheel) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
        infos = archive.infolist()
    honest = members[MODULE]
    code = bytearray(honest)
    code[code.index(b"cudaGetDeviceCount")] ^= 0x20
    code[code.index(b"\x7fELF", 64) + 700] ^= 0xFF
    members[MODULE] = bytes(code)
    (record,) = (name for name in members if name.endswith("/RECORD"))
    rows = [urlsafe_b64encode(sha256(data).digest()).rstrip(b"=") for data in (honest, code)]
    members[record] = members[record].replace(*rows)
    with zipfile.ZipFile(wheel, "w") as archive:
        for info in infos:
            archive.writestr(info, members[info.filename])
    digests = [sha256(data).hexdigest().encode() for data in (honest, code)]
    embed_sbom(wheel, document.replace(*digests), epoch)


def test_bytes_that_the_sources_do_not_give_are_named(
    commands, checkout, built_probe, away, elsewhere, tmp_path
):
    """Someone publishes other bytes: manifest, record, provenance and SBOM all agree with them."""
    folder = elsewhere / "dist" / PROFILE
    shutil.copytree(checkout / "dist" / PROFILE, folder)
    (wheel,) = folder.glob("*.whl")
    tamper(wheel, 1774917780)
    record = json.loads((folder / "record.json").read_text())
    record["wheel"] = wheel_facts(wheel)
    (folder / "record.json").write_text(json.dumps(record))
    store = f"oci-layout:{tmp_path / 'tampered'}"
    away("builder", "publish", "-p", PROFILE, "--to", store)
    out = tmp_path / "out"
    ended = away(
        *("builder", "rebuild", f"{store}:{PROFILE}", "--compile-cache", "--offline"),
        *("--out", out, "--json"),
        code=6,
    )
    answer = ended.json()
    assert answer["verdict"] == "different"
    assert answer["rebuilt"] == built_probe["sha256"]
    members = {m["path"]: m for m in answer["comparison"]["members"]}
    module = members.pop(MODULE)
    places = [part["where"] for part in module["parts"]]
    assert any(place.startswith(".rodata") for place in places), places
    assert any(place.startswith(".nv_fatbin region 0 entry 0, sm_75") for place in places), places
    assert not any(part.get("reasons") for part in module["parts"])
    # What repeats the module's hash follows it.
    assert {Path(path).name for path in members} == {"RECORD", "kvreg-builder.cdx.json"}
    assert answer["comparison"]["unexplained"] == [MODULE]
    shown = commands("registry", "show", f"{store}:{PROFILE}").out
    assert "rebuild verdict: different" in shown
    # The two wheels are there to be looked at by hand.
    (theirs,), (ours,) = out.glob("published/*.whl"), out.glob("*.whl")
    ended = commands("builder", "compare", theirs, ours, code=6)
    assert f"{MODULE} (elf): changed" in ended.out


def test_a_checkout_that_changed_is_refused_with_both_digests(away, elsewhere, store, tmp_path):
    """Recipe, builder, locks, sources and the toolchain's definition, each by its digests."""
    package = tmp_path / "changed" / "builder"
    shutil.copytree(
        Path(builder.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("recipes/probe/compile.py", "wheelfile.py", "probe/CMakeLists.txt"):
        path = package / name
        path.write_text(path.read_text() + "\n# changed\n")
    for name in (f"profiles/{PROFILE}/build.lock", f"dockerfiles/{TOOLCHAIN}/toolchain.toml"):
        path = elsewhere / name
        path.write_text(path.read_text() + "\n# changed\n")
    ended = away(
        *("builder", "rebuild", f"oci-layout:{store}:{PROFILE}", "--json"),
        code=1,
        PYTHONPATH=str(package.parent),
        DOCKER_HOST=NO_ENGINE,
    )
    problems = {p["where"]: p for p in ended.json()["error"]["problems"]}
    assert set(problems) == {
        "recipe probe",
        "builder",
        "build lock",
        "sources of kvreg-probe",
        f"definition of toolchain {TOOLCHAIN}",
    }
    for problem in problems.values():
        assert problem["expected"].startswith("sha256:")
        assert problem["found"].startswith("sha256:")
        assert problem["expected"] != problem["found"]
    assert "--despite-changes" in ended.json()["error"]["remedy"]


def test_another_image_under_the_same_name_is_refused_with_both_digests(
    checkout, built_probe, away, elsewhere, tmp_path, toolchain_image
):
    folder = elsewhere / "dist" / PROFILE
    shutil.copytree(checkout / "dist" / PROFILE, folder)
    record = json.loads((folder / "record.json").read_text())
    theirs = "sha256:" + "5" * 64
    record["toolchain"] |= {"image_digest": theirs, "layers": ["sha256:" + "6" * 64]}
    (folder / "record.json").write_text(json.dumps(record))
    store = f"oci-layout:{tmp_path / 'other'}"
    away("builder", "publish", "-p", PROFILE, "--to", store)
    ended = away("builder", "rebuild", f"{store}:{PROFILE}", "--json", code=1)
    (problem,) = ended.json()["error"]["problems"]
    assert problem["where"] == f"image of toolchain {TOOLCHAIN}"
    assert (problem["expected"], problem["found"]) == (theirs, toolchain_image.image_digest)
    assert not list((elsewhere / "dist").glob("*/rebuilt/*.whl"))
