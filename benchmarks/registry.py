"""Pushing and pulling against `oras` and `skopeo`: the same work, the same machine, one run.

    python -m benchmarks.registry                          1 GB, seven rounds, a table
    python -m benchmarks.registry --blobs 4 --json out.json

A real CNCF Distribution serves on loopback. Each contender is a fresh process; a round runs all of
them, in an order that changes from round to round, and before each run the registry is emptied and
the disk has caught up. What is read is in the page cache for all of them, as it was just written or
hashed. One round of each task comes before, to warm up, and does not count. Every run's result is
hashed afterwards, outside of the time. Runs of the same case that the JSON file has already are
kept, so rounds can be spread over several quiet moments.

The same bytes move, but not the same work is done. `registry` hashes every byte in both directions
and leaves a pulled layout on the disk, by fsync. `skopeo` hashes in both directions as well. `oras`
hashes what it pulls, and files before it pushes them, but not what it pushes from a layout: there
the registry alone checks the digest. Neither of the two waits for the disk when it pulls.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure import INSTALLED, Command, Run, machine, ratios, timed
from kvreg.model.digest import sha256_file
from kvreg.model.oci import ANNOTATION_TITLE, Descriptor, Manifest, empty_descriptor
from registry.layout import Layout
from tests.kvreg.profiles import make_profile
from tests.support.distribution import Distribution, running_distribution
from tests.support.tools import Tool, find_tool

KIND = "application/octet-stream"
OURS = "registry"


@dataclass
class Task:
    """The same work for several contenders: the command of each, by name."""

    name: str
    commands: dict[str, list[str]]
    before: Callable[[], None]
    check: Callable[[], None]
    runs: dict[str, list[Run]] = field(default_factory=dict)

    def median(self, contender: str) -> float:
        """Seconds."""
        return statistics.median(run.seconds for run in self.runs[contender])

    def ratios(self, other: str) -> list[float]:
        """Our time over the other's, round by round: below one is faster."""
        return ratios(self.runs[OURS], self.runs[other])

    @property
    def fastest_other(self) -> str:
        """Whom to measure up to."""
        return min((name for name in self.runs if name != OURS), key=self.median)

    def take(self, earlier: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Put runs of an earlier `to_dict` before these."""
        for name, runs in earlier.items():
            self.runs[name] = [*(Run(**run) for run in runs), *self.runs[name]]

    def to_dict(self) -> dict[str, object]:
        """As JSON-ready data."""
        return {
            "task": self.name,
            "runs": {name: [asdict(run) for run in runs] for name, runs in self.runs.items()},
            "median_seconds": {name: self.median(name) for name in self.runs},
            "fastest_other": self.fastest_other,
            "ratio": {
                name: {
                    "median": statistics.median(self.ratios(name)),
                    "least": min(self.ratios(name)),
                    "most": max(self.ratios(name)),
                }
                for name in self.runs
                if name != OURS
            },
        }


class Bench:
    """The registry, the material and the commands."""

    def __init__(self, folder: Path, running: Distribution, size: int, blobs: int) -> None:
        self.folder = folder
        self.registry = running
        self.target = f"{running.host}/bench/artifact"
        self.size = size
        self.files = [self._random_file(number, size // blobs) for number in range(blobs)]
        self.layout = Layout(folder / "source")
        self.out = folder / "out"
        self.manifest = self._fill()
        make_profile(folder / "profiles")

    def tasks(self, oras: Tool, skopeo: Tool) -> list[Task]:
        """What is measured."""
        ours = [sys.executable, "-c", "from registry.cli import run; run()"]
        policy = [*skopeo.command, "--insecure-policy", "--tmpdir", str(self.folder)]
        source, target, out = f"{self.layout.path}:one", f"{self.target}:one", f"{self.out}:one"
        files = [f"{path.name}:{KIND}" for path in self.files]
        wheels = [text for path in self.files for text in ("--wheel", str(path))]
        profile = str(self.folder / "profiles" / "demo")
        push = Task(
            "push: a layout to the registry",
            {
                OURS: [*ours, "copy", f"oci-layout:{source}", target],
                "oras": [*oras.command, "cp", "--from-oci-layout", "--to-plain-http", "--no-tty",
                         source, target],
                "skopeo": [*policy, "copy", "--preserve-digests", "--dest-tls-verify=false",
                           f"oci:{source}", f"docker://{target}"],
            },
            self._empty_registry,
            self._check_registry,
        )  # fmt: skip
        files_task = Task(
            "push: files to the registry",
            {
                OURS: [*ours, "push", self.target, "--profile", profile, *wheels],
                "oras": [*oras.command, "push", "--plain-http", "--no-tty", target, *files],
            },
            self._empty_registry,
            self._check_registry,
        )
        pull = Task(
            "pull: the registry to a layout",
            {
                OURS: [*ours, "copy", target, f"oci-layout:{out}"],
                "oras": [*oras.command, "cp", "--from-plain-http", "--to-oci-layout", "--no-tty",
                         target, out],
                "skopeo": [*policy, "copy", "--preserve-digests", "--src-tls-verify=false",
                           f"docker://{target}", f"oci:{out}"],
            },
            self._remove_out,
            self._check_out,
        )  # fmt: skip
        return [push, files_task, pull]

    def measure(self, task: Task, contender: str, *, keep: bool = True) -> None:
        """Run one contender's command once, and keep what it took unless it only warms up."""
        task.before()
        os.sync()
        command = Command(task.commands[contender], INSTALLED, self.folder / "files")
        run = timed([command], self.folder / "output")
        task.check()
        if keep:
            task.runs.setdefault(contender, []).append(run)

    def _random_file(self, number: int, size: int) -> Path:
        path = self.folder / "files" / f"part_{number}-1-py3-none-any.whl"
        path.parent.mkdir(exist_ok=True)
        with path.open("wb") as stream:
            for start in range(0, size, 1 << 20):
                stream.write(os.urandom(min(1 << 20, size - start)))
        return path

    def _fill(self) -> Manifest:
        self.layout.push_blob(b"{}", empty_descriptor())
        layers = []
        for path in self.files:
            title = {ANNOTATION_TITLE: path.name}
            layer = Descriptor(KIND, sha256_file(path), path.stat().st_size, title)
            self.layout.push_blob(path, layer)
            layers.append(layer)
        manifest = Manifest(empty_descriptor(), tuple(layers), "application/x-bench")
        self.layout.push_manifest(manifest.to_bytes(), tag="one")
        return manifest

    def _empty_registry(self) -> None:
        shutil.rmtree(self.registry.root / "docker", ignore_errors=True)

    def _remove_out(self) -> None:
        shutil.rmtree(self.out, ignore_errors=True)

    def _check_registry(self) -> None:
        for layer in self.manifest.layers:
            hexadecimal = layer.digest.removeprefix("sha256:")
            (stored,) = self.registry.root.rglob(f"blobs/sha256/*/{hexadecimal}/data")
            assert sha256_file(stored) == layer.digest

    def _check_out(self) -> None:
        for layer in self.manifest.layers:
            stored = self.out / "blobs/sha256" / layer.digest.removeprefix("sha256:")
            assert sha256_file(stored) == layer.digest


def measure(size: int, blobs: int, rounds: int, scratch: Path | None, seed: int) -> list[Task]:
    """The tasks with their runs."""
    order = random.Random(seed)
    with (
        tempfile.TemporaryDirectory(prefix="kvreg-bench-", dir=scratch) as name,
        running_distribution(Path(name) / "registry") as running,
    ):
        bench = Bench(Path(name), running, size, blobs)
        tasks = bench.tasks(find_tool("oras"), find_tool("skopeo"))
        for task in tasks:
            if task.before == bench._remove_out:
                bench._empty_registry()
                subprocess.run(tasks[0].commands["oras"], cwd=name, check=True, capture_output=True)
            contenders = list(task.commands)
            for contender in contenders:
                bench.measure(task, contender, keep=False)
            for _ in range(rounds):
                order.shuffle(contenders)
                for contender in contenders:
                    bench.measure(task, contender)
                    last = task.runs[contender][-1]
                    note = f"{task.name:<32} {contender:<9} {last.seconds:6.2f} s"
                    print(note, file=sys.stderr, flush=True)
    return tasks


def with_earlier(file: Path | None, size: int, blobs: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the JSON file has, and the case of these bytes in it, both to be added to."""
    tools = [find_tool(name) for name in ("oras", "skopeo")]
    found: dict[str, Any] = {
        "machine": machine(),
        "versions": {tool.name: f"{tool.version} ({tool.origin})" for tool in tools},
        "cases": [],
    }
    if file is not None and file.exists():
        earlier = json.loads(file.read_text())
        if any(earlier[key] != found[key] for key in ("machine", "versions")):
            sys.exit(f"{file} was measured elsewhere: choose another file")
        found = earlier
    for case in found["cases"]:
        if (case["bytes"], case["blobs"]) == (size, blobs):
            return found, case
    found["cases"].append({"bytes": size, "blobs": blobs, "rounds": 0, "tasks": []})
    return found, found["cases"][-1]


def table(found: Mapping[str, Any]) -> str:
    """A case for people."""
    lines = [
        f"{found['bytes']} bytes in {found['blobs']} blob(s), {found['rounds']} rounds;"
        " time as median (least to most); ratio = registry's time over the other's",
        f"{'':<32} {'':<9} {'seconds':<22} {'ratio':<22} {'CPU s':>6}",
    ]
    for task in found["tasks"]:
        for name, runs in task["runs"].items():
            seconds = sorted(run["seconds"] for run in runs)
            ratio = task["ratio"].get(name)
            lines.append(
                f"{task['task']:<32} {name:<9} {_spread(statistics.median(seconds), seconds):<22} "
                f"{_spread(ratio['median'], [ratio['least'], ratio['most']]) if ratio else '':<22} "
                f"{statistics.median(run['cpu_seconds'] for run in runs):6.2f}"
            )
    return "\n".join(lines)


def _spread(middle: float, values: Sequence[float]) -> str:
    return f"{middle:.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", type=int, default=1_000_000_000, help="bytes (default: 1 GB)")
    parser.add_argument("--blobs", type=int, default=1, help="cut into so many (default: 1)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scratch", type=Path, help="a folder with five times the size free")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the runs there")
    options = parser.parse_args()
    found, case = with_earlier(options.json, options.size, options.blobs)
    tasks = measure(
        options.size, options.blobs, options.rounds, options.scratch, seed=case["rounds"] + 1
    )
    for task, earlier in zip(tasks, case["tasks"], strict=bool(case["tasks"])):
        task.take(earlier["runs"])
    case["tasks"] = [task.to_dict() for task in tasks]
    case["rounds"] += options.rounds
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    print(table(case))


if __name__ == "__main__":
    main()
