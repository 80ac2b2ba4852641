"""Pulling a runtime, against what people do today and against the least that it can cost.

    python -m benchmarks.pull --wheel dist/NAME/vllm-….whl --wheel OTHER.whl [--rounds 7]

Each wheel is published to a real CNCF Distribution on loopback. Then, round by round and in an
order that changes, each contender starts from nothing and ends with the unpacked wheel:

kvreg            `kvreg pull`: digest, wheel, every RECORD hash, refusals; also with zlib alone
oras + pip       oras-py, SHA256 of the file, ``pip install --target --no-deps --no-compile``
oras + uv        oras-py, SHA256 of the file, ``uv pip install --target --no-deps``
floor: transfer  ranges over four connections into a file, SHA256 of it; nothing else
floor: unpack    every member inflated and written on all cores; nothing is hashed
floor: checked   the same, and every member's SHA256 compared with RECORD

Every contender is a fresh process with its compiled files there. The page cache is warm: what the
registry serves and the wheel that the floors read have just been read; outputs are emptied and put
aside, and the disk has caught up, before each run. (Not deleted: for minutes ext4 gives no inode
of a deleted file out again and looks at every one of them for each new file, which costs whoever
comes next up to 0.7 CPU seconds that no fresh disk costs.) Nobody waits for the disk at the end
(kvreg does not either: see `kvreg.durability`). In the first round every result is compared with
the wheel.
"""

import argparse
import base64
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.measure import (
    INSTALLED,
    Command,
    Run,
    interleaved,
    machine,
    median,
    ratios,
    spread,
    timed,
)
from kvreg.model.digest import sha256_file
from kvreg.model.profile import Profile
from kvreg.wheel.inflate import available
from kvreg.wheel.tags import parse_wheel_name
from registry.publish import Layer, publish
from registry.store import open_store
from tests.kvreg.profiles import make_profile
from tests.support.distribution import Distribution, running_distribution

OURS = "kvreg"
PIP, UV = "oras + pip", "oras + uv"
TRANSFER, UNPACK, CHECKED = "floor: transfer", "floor: unpack", "floor: checked"
GOALS = {PIP: 1 / 4, UV: 1 / 1.7}
FLOOR_GOAL = 1.25
VERIFY, HASH, WARM, HELP = "kvreg verify", "floor: hash", "kvreg pull, warm", "kvreg --help"
VERIFY_GOAL = 1.5
MOST_SECONDS = {WARM: 0.25, HELP: 0.12}

_ORAS = """
import sys, oras.client
client = oras.client.OrasClient(hostname=sys.argv[1].split("/")[0], insecure=True)
print(client.pull(target=sys.argv[1], outdir=sys.argv[2]))
"""
_SHA256 = """
import hashlib, sys
state = hashlib.sha256()
with open(sys.argv[1], "rb") as file:
    while chunk := file.read(1 << 20):
        state.update(chunk)
sys.exit(state.hexdigest() != sys.argv[2])
"""


@dataclass(frozen=True)
class Subject:
    """One published wheel."""

    wheel: Path
    sha256: str
    unpacked: int
    profile: Profile
    target: str


@dataclass(frozen=True)
class Goal:
    """A ratio to another's time (or seconds) that is not to be exceeded, and what was found."""

    of: str
    at_most: float
    found: float


class Bench:
    """The registry, and the contenders for one wheel."""

    def __init__(self, folder: Path, running: Distribution, wheel: Path) -> None:
        self.folder = folder
        self.subject = _publish(folder, running, wheel)
        self.host = running.host
        self.out = folder / "out"
        self.environment = {
            **INSTALLED,
            "KVREG_PROFILES": str(folder / "profiles"),
            # On the same file system for everybody, so that nobody moves files from one to another.
            "TMPDIR": str(folder / "out"),
        }

    def contenders(self) -> dict[str, list[Command]]:
        """The commands of each, one after another."""
        python, out, subject = sys.executable, self.out, self.subject
        repository = subject.target.partition("/")[2].rpartition(":")[0]
        blob = f"/v2/{repository}/blobs/sha256:{subject.sha256}"
        file = out / subject.wheel.name
        fetch = [
            self._command(python, "-c", _ORAS, subject.target, str(out)),
            self._command(python, "-c", _SHA256, str(file), subject.sha256),
        ]
        pip = [python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
        pip += ["--disable-pip-version-check", "--target", str(out / "site"), str(file)]
        uv = [_uv(), "pip", "install", "--quiet", "--offline", "--no-deps", "--python", python]
        uv += ["--cache-dir", str(out / "cache"), "--target", str(out / "site"), str(file)]
        size = str(subject.wheel.stat().st_size)
        floors = [python, "-m", "benchmarks.floors"]
        return {
            OURS: [self._kvreg()],
            "kvreg, zlib": [self._kvreg(KVREG_INFLATE="zlib")],
            PIP: [*fetch, self._command(*pip)],
            UV: [*fetch, self._command(*uv)],
            TRANSFER: [self._command(*floors, "download", self.host, blob, size, str(file))],
            UNPACK: [self._command(*floors, "unpack", str(subject.wheel), str(out / "site"))],
            CHECKED: [self._command(*floors, "checked", str(subject.wheel), str(out / "site"))],
        }

    def run(self, name: str, number: int) -> Run:
        """One contender from nothing."""
        self.clean()
        found = timed(self.contenders()[name], self.folder / "output")
        if number == 0 and name != TRANSFER:
            self._check(name)
        note = f"{self.subject.wheel.name[:40]:<42}{name:<16} {found.seconds:6.2f} s"
        print(note, file=sys.stderr, flush=True)
        return found

    def clean(self) -> None:
        """Nothing is there, and the disk and the page cache are quiet and warm."""
        if self.out.exists():
            for folder, _, names in os.walk(self.out):
                for name in names:
                    os.truncate(os.path.join(folder, name), 0)  # noqa: PTH118
            self.out.rename(tempfile.mkdtemp(prefix="used-", dir=self.folder))
        self.out.mkdir()
        os.sync()

    def daily(self, rounds: int) -> dict[str, list[Run]]:
        """What is done with a runtime that is there."""
        self.clean()
        timed([self._kvreg()], self.folder / "output")
        site = next(self.out.glob("home/runtimes/*/site"))
        kvreg = [sys.executable, "-m", "kvreg"]
        hashing = [sys.executable, "-m", "benchmarks.floors", "hash", str(site)]
        commands = {
            HELP: self._command(*kvreg, "--help"),
            WARM: self._kvreg(),
            VERIFY: self._command(
                *kvreg, "verify", self.subject.profile.name, "--home", str(self.out / "home")
            ),
            HASH: self._command(*hashing),
        }
        return interleaved(
            list(commands),
            rounds,
            lambda name, number: timed([commands[name]], self.folder / "output"),
        )

    def _kvreg(self, **environment: str) -> Command:
        repository = self.subject.target.rpartition(":")[0]
        pull = ["pull", self.subject.profile.name, "--registry", repository, "--no-lock"]
        return self._command(
            sys.executable, "-m", "kvreg", *pull, "--home", str(self.out / "home"), **environment
        )

    def _command(self, *argv: str, **environment: str) -> Command:
        return Command(argv, {**self.environment, **environment}, Path(__file__).parents[1])

    def _check(self, name: str) -> None:
        site = next(self.out.glob("home/runtimes/*/site"), self.out / "site")
        with zipfile.ZipFile(self.subject.wheel) as archive:
            (record,) = [n for n in archive.namelist() if n.endswith(".dist-info/RECORD")]
            for line in archive.read(record).decode().splitlines():
                path, digest, _ = line.rsplit(",", 2)
                if digest and ".data/" not in path and not path.startswith('"'):
                    found = hashlib.sha256((site / path).read_bytes()).digest()
                    text = base64.urlsafe_b64encode(found).rstrip(b"=").decode()
                    assert digest == f"sha256={text}", f"{name}: {path}"


def _publish(folder: Path, running: Distribution, wheel: Path) -> Subject:
    name = parse_wheel_name(wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        unpacked = sum(info.file_size for info in archive.infolist())
    profile = make_profile(
        folder / "profiles",
        f"bench-{len(list(folder.glob('profiles/*')))}",
        package=f'package = "{name.name}"',
        version=f'version = "{name.version}"',
        modules=f'modules = ["{name.name}"]',
    )
    target = f"{running.host}/bench/{profile.name}"
    with open_store(target) as store:
        publish(store, profile, [Layer(wheel, role="native")])
    return Subject(wheel, sha256_file(wheel)[7:], unpacked, profile, f"{target}:{profile.name}")


def _uv() -> str:
    from uv import find_uv_bin

    return find_uv_bin()


def measure(wheels: list[Path], rounds: int, scratch: Path | None) -> dict[str, object]:
    """Everything, as JSON-ready data."""
    with (
        tempfile.TemporaryDirectory(prefix="kvreg-bench-", dir=scratch) as name,
        running_distribution(Path(name) / "registry") as running,
    ):
        found = [_measured(Bench(Path(name), running, wheel), rounds) for wheel in wheels]
    return {
        "machine": machine(),
        "versions": _versions(),
        "inflate": [item.to_dict() for item in available()],
        "wheels": found,
    }


def _measured(bench: Bench, rounds: int) -> dict[str, object]:
    # Once, uncounted: compiled files, page cache, and that everything works.
    for commands in bench.contenders().values():
        bench.clean()
        timed(commands, bench.folder / "output")
    runs = interleaved(list(bench.contenders()), rounds, bench.run)
    daily = bench.daily(rounds)
    bench.clean()
    goals = [Goal(name, most, _ratio(runs[OURS], runs[name])) for name, most in GOALS.items()]
    for floor in (UNPACK, CHECKED):
        higher = max((TRANSFER, floor), key=lambda name: median(runs[name]))
        goals.append(Goal(higher, FLOOR_GOAL, _ratio(runs[OURS], runs[higher])))
    goals.append(Goal(HASH, VERIFY_GOAL, _ratio(daily[VERIFY], daily[HASH])))
    seconds = [Goal(name, most, median(daily[name])) for name, most in MOST_SECONDS.items()]
    return {
        "wheel": bench.subject.wheel.name,
        "bytes": bench.subject.wheel.stat().st_size,
        "unpacked": bench.subject.unpacked,
        "rounds": rounds,
        "runs": _as_data(runs),
        "daily": _as_data(daily),
        "ratios": {n: ratios(runs[OURS], other) for n, other in runs.items() if n != OURS},
        "goals": [asdict(goal) for goal in goals],
        "goals_seconds": [asdict(goal) for goal in seconds],
    }


def _ratio(runs: list[Run], others: list[Run]) -> float:
    return median(runs) / median(others)


def _as_data(runs: dict[str, list[Run]]) -> dict[str, list[dict[str, float]]]:
    return {name: [asdict(run) for run in items] for name, items in runs.items()}


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("kvreg", "oras", "pip", "uv")} | {
        "python": sys.version.split()[0],
        "docker-registry": _first_line(["docker-registry", "--version"]),
    }


def _first_line(command: list[str]) -> str:
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return (found.stdout or found.stderr).strip().partition("\n")[0]


def table(found: dict[str, object]) -> str:
    """The result for people."""
    lines = [
        f"{found['machine']['cores']} cores;"  # type: ignore[index]
        " seconds as median (least to most); ratio = kvreg's time over the other's"
    ]
    for wheel in found["wheels"]:  # type: ignore[attr-defined]
        mb, unpacked = wheel["bytes"] / 1e6, wheel["unpacked"] / 1e6
        size = f"{mb:.0f} MB, {unpacked:.0f} MB unpacked, {wheel['rounds']} rounds"
        lines += ["", f"{wheel['wheel']}: {size}"]
        lines.append(f"{'':<18}{'seconds':<23}{'ratio':<23}{'CPU s':>6}{'peak MiB':>10}")
        for name, runs in [*wheel["runs"].items(), *wheel["daily"].items()]:
            shown = wheel["ratios"].get(name)
            cpu = sorted(run["cpu_seconds"] for run in runs)[len(runs) // 2]
            lines.append(
                f"{name:<18}{spread([run['seconds'] for run in runs]):<23}"
                f"{spread(shown) if shown else '':<23}{cpu:6.2f}"
                f"{max(run['peak_bytes'] for run in runs) / 2**20:10.0f}"
            )
        for kind, unit in (("goals", "of "), ("goals_seconds", "s for ")):
            for goal in (Goal(**data) for data in wheel[kind]):
                met = "met" if goal.found <= goal.at_most else "MISSED"
                lines.append(
                    f"  goal: at most {goal.at_most:.2f} {unit}{goal.of}: {goal.found:.3f}, {met}"
                )
    return "\n".join(lines)


def main() -> None:
    """See the module's text."""
    description, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--wheel", type=Path, action="append", required=True, help="repeatable")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scratch", type=Path, help="a folder with room for five unpacked wheels")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there")
    options = parser.parse_args()
    found = measure([path.absolute() for path in options.wheel], options.rounds, options.scratch)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
