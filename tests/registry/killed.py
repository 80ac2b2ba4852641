"""Kills a writer at random points, again and again: a program that test_kills.py runs.

    python -m tests.registry.killed WORK COUNT FOLDER HOST

The modules are loaded once; each writer is a fork, so that its time goes into the work. After each
kill the store must be valid, and the same work again must complete. Prints a JSON object.
"""

import datetime
import hashlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvreg.model.oci import Descriptor
from kvreg.model.profile import Profile
from registry.attach import attach
from registry.copy import copy
from registry.layout import Layout
from registry.publish import Layer, publish
from registry.store import Store, open_store
from registry.verify import verify
from tests.kvreg.profiles import make_profile

DAY = datetime.date(2026, 11, 30)


@dataclass(frozen=True)
class Work:
    """What is done to which store; a fresh store each time unless `keeps`."""

    destination: Callable[[Path, str, int], str]
    do: Callable[["Material", str], None]


class Material:
    """A profile, two wheels, and a layout and a repository that hold their artifact."""

    def __init__(self, folder: Path, host: str, name: str) -> None:
        chance = random.Random(name)
        self.layers = []
        for number, size in enumerate((1_500_000, 400_000)):
            path = folder / f"part_{number}-1.2-py3-none-any.whl"
            path.write_bytes(chance.randbytes(size))
            self.layers.append(Layer(path, role="native" if number == 0 else "overlay"))
        self.profile: Profile = make_profile(folder / "profiles")
        self.layout = f"oci-layout:{folder}/source"
        self.repository = f"{host}/kills/{name}-source"
        self.artifact = self.put(self.layout)

    def put(self, reference: str) -> Descriptor:
        """Publish, and attach an SBOM."""
        with open_store(reference) as store:
            found = publish(store, self.profile, self.layers, date=DAY).descriptor
            attach(store, found, "application/x-sbom", b"{}1", "sbom.json")
        return found


def _put(material: Material, reference: str) -> None:
    material.put(reference)


def _push(material: Material, reference: str) -> None:
    with open_store(material.layout) as source, open_store(reference) as destination:
        copy(source, destination, "demo")


def _pull(material: Material, reference: str) -> None:
    with open_store(material.repository) as source, open_store(reference) as destination:
        copy(source, destination, "demo")


def _layout(folder: Path, name: str, number: int) -> str:
    return f"oci-layout:{folder}/{name}-{number}"


WORKS = {
    "layout": Work(lambda folder, host, number: _layout(folder, "layout", number), _put),
    "push": Work(lambda folder, host, number: f"{host}/kills/push-{number}", _put),
    "copy-push": Work(lambda folder, host, number: f"{host}/kills/copy-{number}", _push),
    "copy-pull": Work(lambda folder, host, number: _layout(folder, "pulled", number), _pull),
}


def fork(work: Callable[[], None]) -> int:
    """Do the work in another process; its id."""
    child = os.fork()
    if child:
        return child
    try:
        work()
        os._exit(0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        os._exit(1)


def finish(work: Callable[[], None]) -> float:
    """Do the work in another process to its end; the seconds that it took."""
    begun = time.monotonic()
    _, status = os.waitpid(fork(work), 0)
    if status != 0:
        raise AssertionError(f"the work did not complete: {status}")
    return time.monotonic() - begun


def check_valid(store: Store, artifact: Descriptor) -> None:
    """Whatever the store names is whole."""
    if isinstance(store, Layout):
        for path in (store.path / "blobs/sha256").glob("*"):
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name, path
        if not (store.path / "oci-layout").exists():
            return
    found = {tag: store.resolve(tag) for tag in store.list_tags()}
    # A registry lists a tag that it is about to write, with the request of a client that is dead.
    named = {tag: item for tag, item in found.items() if item is not None}
    assert not isinstance(store, Layout) or named == found
    assert set(named.values()) <= {artifact}, found
    for tag in named:
        assert verify(store, tag).ok
        break


def check_complete(store: Store, material: Material) -> None:
    """The artifact, its tags and its SBOM are there."""
    assert store.resolve("demo") == material.artifact
    assert store.resolve(material.profile.digest_tag) == material.artifact
    assert verify(store, "demo").ok
    assert len(store.referrers(material.artifact.digest)) == 1


def main(name: str, count: int, folder: Path, host: str) -> dict[str, object]:
    """Kill until `count` writers died of it."""
    work, chance = WORKS[name], random.Random(name)
    material = Material(folder, host, name)
    if name == "copy-pull":
        finish(lambda: _push(material, material.repository))
    takes = finish(lambda: work.do(material, work.destination(folder, host, 0)))
    killed, number, points = 0, 0, []
    while killed < count:
        number += 1
        assert number < 4 * count, "the writers were too quick to be killed"
        reference = work.destination(folder, host, number)

        def do(reference: str = reference) -> None:
            work.do(material, reference)

        begun = time.monotonic()
        child = fork(do)
        delay = chance.uniform(0, takes)
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            killed += 1
            points.append(round(delay / takes, 2))
        else:
            # The measure of how long it takes was too long.
            takes = 0.7 * takes + 0.3 * (time.monotonic() - begun)
        with open_store(reference) as store:
            check_valid(store, material.artifact)
        finish(do)
        with open_store(reference) as store:
            check_complete(store, material)
    return {"work": name, "killed": killed, "runs": number, "points": sorted(points)}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])))
