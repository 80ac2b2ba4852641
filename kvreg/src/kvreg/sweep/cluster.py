"""Sweeps on an existing Ray cluster: the same cells, ledger and evidence, servers on its nodes.

A shard gets a node for itself: a placement group with one bundle of all the node's GPUs (strategy
``STRICT_PACK``), so that nothing else measures there meanwhile, a cell's GPUs are on one node, and
both arms of a repetition run on the same one. On the node an actor runs the shard's cells one
after the other, as a local session does, and hands every event and file over as it comes; only the
driver writes the sweep directory. A node that is lost costs the cell that it had under way, which
ends `FAILED`, and the rest of the shard goes to another node.

The runtime must be staged on every node, and kvreg installed.
"""

import contextlib
import json
import queue
import shutil
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvreg import __version__
from kvreg.errors import ContractError, KvregError, NotFoundError, UsageError
from kvreg.home import Home
from kvreg.sweep.cells import Cell, shards_of
from kvreg.sweep.engine import EngineChoice
from kvreg.sweep.ledger import FAILED, EventLog, Result
from kvreg.sweep.runner import LocalSession
from kvreg.sweep.session import CELLS, GATES, Choices, Session, write_file

HOSTS = "hosts"
_PATIENCE_S = 120.0

Item = tuple[str, Any]
"""What comes from a node: ("event", record), ("file", (name, bytes)) or ("error", text)."""


class ClusterSession(Session):
    """The driver's session: it writes the directory and gives shards to nodes."""

    def __init__(
        self, folder: Path, raw_plan: bytes, chosen: EngineChoice, choices: Choices, address: str
    ) -> None:
        super().__init__(folder, raw_plan, chosen.make(), choices)
        self.chosen = chosen
        self.address = address
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._connected = False

    def _equip(self, facts: Any) -> None:
        ray = _ray()
        try:
            ray.init(address=self.address, log_to_driver=False, namespace="kvreg")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UsageError(
                f"the Ray cluster at {self.address} cannot be reached",
                found=str(error).splitlines()[0],
                remedy="start one (ray start --head), or name it with --ray-address",
            ) from None
        self._connected = True
        self.ledger.append(
            "session",
            kvreg=__version__,
            engine=self.engine.identity(),
            facts=facts.digest if facts else None,
            sampler=self.choices.sampler,
            ray={"version": ray.__version__, "nodes": len(ray.nodes())},
        )

    def close(self) -> None:
        """Leave the cluster, then as every session."""
        self._stopped.set()
        if self._connected:
            _ray().shutdown()
        super().close()

    def run(
        self,
        cells: Sequence[Cell],
        done: Callable[[Cell, Result], object],
        more: Callable[[], bool] = lambda: True,
    ) -> None:
        """Run shards on all nodes at once. Raises the first error that makes it impossible."""
        gpus, slots = _slots(max((cell.tp for cell in cells), default=1))
        waiting = [list(members) for _, members in shards_of(cells)]
        under_way: list[list[Cell]] = []
        errors: list[BaseException] = []

        def work() -> None:
            while (left := self._next(waiting, under_way)) is not None:
                try:
                    while left and not self._stopped.is_set() and more():
                        self._run_shard(left, gpus, done)
                except BaseException as error:
                    errors.append(error)
                    self._stopped.set()
                finally:
                    with self._changed:
                        under_way[:] = [other for other in under_way if other is not left]
                        self._changed.notify_all()

        threads = [threading.Thread(target=work, daemon=True) for _ in range(slots)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)  # in steps, so that Ctrl-C comes through
        finally:
            self._stopped.set()
        if errors:
            raise errors[0]

    def _next(self, waiting: list[list[Cell]], under_way: list[list[Cell]]) -> list[Cell] | None:
        """The next shard for a node; None when there is none left.

        Shards of one model and workload share pilots: the first of them runs alone.
        """
        with self._changed:
            while waiting and not self._stopped.is_set():
                pilots = self.ledger.read().pilots
                busy = {(shard[0].model, shard[0].workload) for shard in under_way if shard}
                for shard in waiting:
                    known = all(cell.group in pilots for cell in shard)
                    if known or (shard[0].model, shard[0].workload) not in busy:
                        waiting.remove(shard)
                        under_way.append(shard)
                        return shard
                self._changed.wait(0.2)
            return None

    def _run_shard(
        self, left: list[Cell], gpus: int, done: Callable[[Cell, Result], object]
    ) -> None:
        """Run the cells of `left` on one node and take them off it; some stay if it is lost."""
        ray = _ray()
        from ray.util.placement_group import placement_group, remove_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group = placement_group([{"GPU": gpus, "CPU": 1}], strategy="STRICT_PACK")
        worker = None
        try:
            if not group.wait(_PATIENCE_S):
                raise UsageError(
                    "the cluster has no free node",
                    expected=f"a node with {gpus} free GPUs and a CPU",
                    found=f"none in {_PATIENCE_S:g} s",
                )
            strategy = PlacementGroupSchedulingStrategy(group, 0)
            actor = ray.remote(NodeWorker).options(
                num_gpus=gpus, num_cpus=1, scheduling_strategy=strategy, max_restarts=0
            )
            worker = actor.remote(self.raw_plan, self.chosen, self.choices, self.id)
            stream = worker.run.options(num_returns="streaming").remote(
                [cell.id for cell in left], list(self.ledger.events), self.engine.artifact
            )
            for item in _items(ray, stream):
                self._take(item, left, done)
        except ray.exceptions.RayActorError as error:
            self._lost(left, str(error).splitlines()[0], done)
        finally:
            with contextlib.suppress(Exception):
                if worker is not None:
                    ray.get(worker.close.remote(), timeout=30)
                    ray.kill(worker)
            remove_placement_group(group)

    def _take(self, item: Item, left: list[Cell], done: Callable[[Cell, Result], object]) -> None:
        kind, content = item
        if kind == "error":
            raise KvregError("a node cannot run the sweep", found=content)
        with self._changed:
            if kind == "file":
                name, data = content
                path = self.folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                write_file(path, data)
                return
            self.ledger.record(content)
            if content["event"] != "finished":
                return
            result = self.ledger.result(content)
            # A failed attempt that is tried again is not the end of its cell.
            if left and left[0].id == result.cell and not content.get("again"):
                done(left.pop(0), result)

    def _lost(self, left: list[Cell], what: str, done: Callable[[Cell, Result], object]) -> None:
        """The node went away: the cell that it had under way has failed."""
        with self._changed:
            cell = left.pop(0)
            ledger = self.ledger.read()
            attempt = ledger.attempts.get(cell.id, 0)
            if not ledger.broken.get(cell.id):
                attempt += 1
                self.ledger.append(
                    "started", cell=cell.id, attempt=attempt, plan=self.plan.digest, cache=None
                )
            event = self.ledger.append(
                "finished",
                cell=cell.id,
                attempt=attempt,
                state=FAILED,
                reason=f"the node was lost: {what}",
                metrics={},
                requests=None,
                evidence={},
                log_tail=None,
                timing={},
            )
            done(cell, self.ledger.result(event))


class NodeLedger(EventLog):
    """Events of a node: each is handed over, with the files that it vouches for, before it."""

    def __init__(
        self,
        session: str,
        events: Sequence[Mapping[str, Any]],
        folder: Path,
        give: Callable[[Item], None],
    ) -> None:
        super().__init__(session, events)
        self.folder = folder
        self.give = give

    def record(self, event: Mapping[str, Any]) -> Mapping[str, Any]:
        """Hand an event over."""
        for path in self._files(event):
            if path.is_file():
                self.give(("file", (path.relative_to(self.folder).as_posix(), path.read_bytes())))
        self.give(("event", dict(event)))
        return super().record(event)

    def _files(self, event: Mapping[str, Any]) -> list[Path]:
        if event["event"] == "finished":
            place = self.folder / CELLS / event["cell"] / f"attempt-{event['attempt']}"
        elif event["event"] == "gate":
            place = self.folder / GATES / event["key"] / f"attempt-{event['attempt']}"
        else:
            return []
        return sorted(place.iterdir()) if place.is_dir() else []


class NodeSession(LocalSession):
    """A session on a node, in a directory that is thrown away."""

    def __init__(
        self,
        folder: Path,
        raw_plan: bytes,
        chosen: EngineChoice,
        choices: Choices,
        ledger: NodeLedger,
    ) -> None:
        super().__init__(folder, raw_plan, chosen.make(), choices)
        self.id = ledger.session
        self.ledger = ledger

    def _prepare(self, facts: Any) -> None:
        if facts is not None:
            name = f"{HOSTS}/{facts.digest.removeprefix('sha256:')[:16]}.json"
            data = _json(facts.to_dict())
            self.ledger.give(("file", (name, data)))  # type: ignore[attr-defined]


class NodeWorker:
    """The actor on a node."""

    def __init__(
        self, raw_plan: bytes, chosen: EngineChoice, choices: Choices, session: str
    ) -> None:
        self.raw_plan = raw_plan
        self.chosen = chosen
        self.session = session
        self.folder = Path(tempfile.mkdtemp(prefix="kvreg-node-"))
        # Caches outlive the actor: the next shard on this node finds them warm.
        caches = choices.caches or Home.find().root / "sweep-caches"
        self.choices = Choices(sampler=choices.sampler, caches=caches)

    def run(
        self, cells: list[str], events: list[Mapping[str, Any]], artifact: str | None
    ) -> Iterator[Item]:
        """Run cells by id; what comes of them, as it comes."""
        items: queue.SimpleQueue[Item | None] = queue.SimpleQueue()

        def work() -> None:
            try:
                ledger = NodeLedger(self.session, events, self.folder, items.put)
                session = NodeSession(self.folder, self.raw_plan, self.chosen, self.choices, ledger)
                if session.engine.artifact != artifact:
                    raise ContractError(
                        "the node has another runtime",
                        expected=str(artifact),
                        found=str(session.engine.artifact),
                    )
                with session:
                    by_id = {cell.id: cell for cell in session.plan.cells()}
                    session.run([by_id[name] for name in cells], lambda cell, result: None)
            except KvregError as error:
                items.put(("error", str(error)))
            except BaseException:
                items.put(("error", traceback.format_exc()))
            finally:
                items.put(None)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        while (item := items.get()) is not None:
            yield item
        thread.join()

    def close(self) -> None:
        """Throw the directory away."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _slots(most: int) -> tuple[int, int]:
    """GPUs of a node, and how many nodes have so many: the commonest kind that is large enough."""
    ray = _ray()
    counts = Counter(
        int(node["Resources"].get("GPU", 0))
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("CPU", 0) >= 1
    )
    fitting = {gpus: count for gpus, count in counts.items() if gpus >= most}
    if not fitting:
        raise UsageError(
            "no node of the cluster is large enough",
            expected=f"a node with {most} GPUs",
            found=", ".join(f"{n} with {gpus}" for gpus, n in sorted(counts.items())) or "no node",
        )
    return max(fitting.items(), key=lambda item: (item[1], -item[0]))


def _items(ray: Any, stream: Any) -> Iterator[Item]:
    for reference in stream:
        yield ray.get(reference)


def _json(tree: Any) -> bytes:
    return (json.dumps(tree, indent=2, ensure_ascii=False) + "\n").encode()


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise NotFoundError(
            "Ray is not installed here", remedy="pip install ray, or leave --engine ray out"
        ) from None
    return ray
