"""The owner's end of the load generator: one process for the whole session."""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import kvreg
from kvreg.errors import KvregError
from kvreg.sweep.failures import Verdict
from kvreg.sweep.job import Answer, Job

_START_S = 60.0
_MARGIN_S = 15.0
_POLL_S = 0.1


class Generator:
    """A load generator process; started again when it is lost."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""

    def start(self) -> None:
        """Start it now, so that no cell waits for it."""
        if self._process is not None and self._process.poll() is None:
            return
        # The package's own place, be it a directory or a zip file; nothing of an active runtime.
        place = str(Path(kvreg.__file__).parent.parent)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kvreg.sweep.load"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": place},
            start_new_session=True,
        )
        self._rest = b""
        if self._line(_START_S, lambda: None) is None:
            self.close()
            raise KvregError("the load generator does not start", remedy="see its errors above")

    def run(self, job: Job, watch: Callable[[], Verdict | None]) -> Answer | Verdict:
        """Run a job. `watch` is asked all the while whether to give up; its verdict ends the job.

        A generator that is lost or silent is an answer with an error of kind ``generator``.
        """
        self.start()
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(job.to_dict()).encode() + b"\n")
            self._process.stdin.flush()
            found = self._line(job.limit_s + job.stall_s + _MARGIN_S, watch)
        except OSError:
            found = None
        except BaseException:
            self.close()
            raise
        if isinstance(found, Verdict):
            self.close()  # the job is under way in there
            return found
        if found is None:
            self.close()
            what = "the load generator was lost or gave no answer"
            return Answer({}, (), {"kind": "generator", "what": what})
        tree = json.loads(found)
        return Answer(tree["metrics"], tuple(tree["latencies"]), tree["error"])

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            self._process = None

    def _line(self, timeout: float, watch: Callable[[], Verdict | None]) -> bytes | Verdict | None:
        assert self._process is not None and self._process.stdout is not None
        handle = self._process.stdout.fileno()
        end = time.monotonic() + timeout
        while b"\n" not in self._rest:
            ready, _, _ = select.select([handle], [], [], _POLL_S)
            if ready:
                data = os.read(handle, 1 << 20)
                if not data:
                    return None
                self._rest += data
            elif (verdict := watch()) is not None:
                return verdict
            elif time.monotonic() > end:
                return None
        line, _, self._rest = self._rest.partition(b"\n")
        return line
