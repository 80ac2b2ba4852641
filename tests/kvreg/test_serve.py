"""``kvreg serve``: a real server process with workers, made ready, answered and gone again."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from kvreg.engine import for_call, for_command
from kvreg.errors import ContractError, UsageError
from kvreg.model.activation import Denied, Settings
from kvreg.process import Grace
from kvreg.serve import ServerError, plan_server, start_server
from tests.support import openai_server
from tests.support.overlays import publish_overlay
from tests.support.wheels import write_wheel

SERVER = f"{shlex.quote(sys.executable)} {shlex.quote(openai_server.__file__)}"
ENGINE = """
[runtime.environment]
set = { DEMO_METHOD = "spawn" }
[runtime.engine]
set = { dtype = "float16", attention-backend = "TRITON_ATTN" }
[[runtime.engine.deny]]
name = "attention-backend"
values = ["FLASH_ATTN"]
reason = "needs 8.0"
"""
# The shape of vLLM: workers, one of them out of the group, beside the server that answers.
WITH_WORKERS = """\
import os, subprocess, sys
children = [subprocess.Popen(["sleep", "321"]),
            subprocess.Popen(["sleep", "322"], start_new_session=True)]
print("method", os.environ["DEMO_METHOD"], "runtime", os.environ["KVREG_RUNTIME"], flush=True)
print("workers", *[child.pid for child in children], flush=True)
sys.argv[0] = {server!r}
exec(compile(open({server!r}).read(), {server!r}, "exec"))
"""


@pytest.fixture
def published(tmp_path, monkeypatch):
    monkeypatch.setenv("KVREG_PROFILES", str(tmp_path / "catalogue"))
    for name in ("KVREG_RUNTIME", "DEMO_METHOD", "KVREG_VERIFY_KEY", "KVREG_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    wheels = tmp_path / "wheels"
    overlay = write_wheel(wheels, "extra_pkg", "3", "py3-none-any")
    published = publish_overlay(tmp_path, write_wheel(wheels), [overlay], runtime=ENGINE)
    published.pull()
    return published


@pytest.fixture
def engine(tmp_path):
    """The command line of a server with workers."""
    script = tmp_path / "engine.py"
    script.write_text(WITH_WORKERS.format(server=openai_server.__file__))
    return f"{shlex.quote(sys.executable)} {script}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def alive(pids):
    def lives(pid):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return state not in "ZX"

    return [pid for pid in pids if lives(pid)]


def workers(log: Path) -> list[int]:
    (line,) = [line for line in log.read_text().splitlines() if line.startswith("workers")]
    return [int(word) for word in line.split()[1:]]


class Command:
    """``kvreg serve`` as a process in a group of its own, as a shell starts it."""

    def __init__(self, published, engine, *arguments, options=()):
        self.port = free_port()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "kvreg", "serve", "demo", "demo-model", "--json"),
                *("--home", published.home.root, "--port", str(self.port), "--grace", "2"),
                *("--engine-command", engine, "--timeout", "30", *options, "--", *arguments),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ready(self):
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return json.loads(line)

    def ended(self, timeout=20):
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, err


def test_it_serves_and_ctrl_c_leaves_nothing(published, engine):
    command = Command(published, engine)
    shown = command.ready()
    assert shown["url"] == f"http://127.0.0.1:{command.port}/v1"
    assert shown["defaults"] == {"attention-backend": "TRITON_ATTN", "dtype": "float16"}
    with urllib.request.urlopen(f"{shown['url']}/models", timeout=5) as response:
        assert json.load(response)["data"][0]["id"] == "demo-model"
    log = Path(shown["log"])
    assert log.parent == published.home.root / "logs"
    text = log.read_text()
    assert text.startswith("# ")
    assert "--dtype float16" in text.splitlines()[0]
    runtime = published.home.runtime(published.profile.digest)
    assert f"method spawn runtime {runtime}" in text
    pids = [shown["pid"], *workers(log)]
    assert alive(pids) == pids
    os.killpg(command.process.pid, signal.SIGINT)
    code, _, err = command.ended()
    assert code == 0
    assert "stopped" in err
    assert "--dtype float16: the profile's default" in err
    assert alive(pids) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_however_it_goes_the_server_goes_too(published, engine, number):
    command = Command(published, engine)
    shown = command.ready()
    pids = [shown["pid"], *workers(Path(shown["log"]))]
    command.process.send_signal(number)
    code, _, _ = command.ended()
    assert code == (0 if number != signal.SIGKILL else -9)
    end = time.monotonic() + 10
    while alive(pids):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_server_that_ends_by_itself_is_an_error(published, engine):
    command = Command(published, engine)
    shown = command.ready()
    pids = workers(Path(shown["log"]))
    os.kill(shown["pid"], signal.SIGKILL)
    code, out, _ = command.ended()
    assert code == 1
    error = json.loads(out)["error"]
    assert "ended by itself" in error["what"]
    assert "-9" in error["found"]
    assert alive(pids) == []


def test_a_server_that_does_not_start_shows_the_end_of_its_log(published):
    crash = "sh -c 'echo out of memory; exit 3' --"
    command = Command(published, crash)
    code, out, _ = command.ended()
    assert code == 1
    error = json.loads(out)["error"]
    assert "exit status 3" in error["found"]
    assert "out of memory" in error["found"]


def test_a_server_that_never_answers_is_stopped(published):
    command = Command(published, "sh -c 'sleep 323' --", options=("--timeout", "0.5"))
    code, out, _ = command.ended()
    assert code == 1
    assert "not ready after 0.5 s" in json.loads(out)["error"]["what"]
    ps = subprocess.run(["pgrep", "-f", "^sleep 323$"], capture_output=True, check=False)
    assert ps.stdout == b""


def test_ctrl_c_while_it_loads(published):
    command = Command(published, "sh -c 'sleep 324' --")
    while "starting" not in command.process.stderr.readline():
        pass
    time.sleep(0.3)
    os.killpg(command.process.pid, signal.SIGINT)
    code, out, err = command.ended()
    assert (code, out) == (130, "")
    assert "before it was ready" in err


def test_a_port_in_use_and_a_missing_command_are_said_before_anything_starts(published):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match="in use"):
            plan_server("demo", "m", home=published.home, port=port)
    command = Command(published, "no-such-engine")
    assert command.ended()[0] == 3


def test_it_binds_to_loopback_unless_told(published):
    plan = plan_server("demo", "m", home=published.home, port=free_port())
    assert plan.command[:6] == ("vllm", "serve", "m", "--host", "127.0.0.1", "--port")
    wide = plan_server("demo", "m", home=published.home, host="0.0.0.0", port=plan.port)
    assert wide.command[4] == "0.0.0.0"
    assert wide.root == f"http://127.0.0.1:{plan.port}"
    with pytest.raises(UsageError, match="--host belong to kvreg serve"):
        plan_server("demo", "m", ["--host=0.0.0.0"], home=published.home)


def test_dry_run_shows_the_command(published):
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "kvreg", "serve", "demo", "m", "--home", published.home.root),
            *("--port", str(free_port()), "--dry-run", "--", "--dtype=float32"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--attention-backend TRITON_ATTN --dtype=float32" in ended.stdout


def test_as_a_context_in_a_notebook(published, engine, tmp_path):
    plan = plan_server(
        "demo", "m", home=published.home, port=free_port(), engine=shlex.split(engine)
    )
    with start_server(plan, Grace(5, 2)) as server:
        assert server.wait_ready(30) < 30
        pids = workers(plan.log)
        assert alive(pids) == pids
    assert alive(pids) == []
    with pytest.raises(ServerError, match="ended before it was ready"):
        server.wait_ready(1)


RULES = Settings(
    {"dtype": "float16", "attention-backend": "TRITON_ATTN"},
    (Denied("attention-backend", ("FLASH_ATTN",), "needs 8.0"),),
)


@pytest.mark.parametrize(
    "words",
    [
        ["--attention-backend", "FLASH_ATTN"],
        ["--attention_backend=flash_attn"],
        ["--attention-config.backend", "FLASH_ATTN"],
        ["-ac", '{"backend": "FLASH_ATTN"}'],
        ['--attention-config={"backend": "FLASH_ATTN"}'],
    ],
)
def test_denied_options_are_found_however_they_are_said(words):
    with pytest.raises(ContractError) as caught:
        for_command(RULES, words, "demo")
    (problem,) = caught.value.problems
    assert (problem.where, problem.what) == ("--attention-backend", "needs 8.0")


@pytest.mark.parametrize(
    ("words", "added"),
    [
        ([], ["--dtype", "float16", "--attention-backend", "TRITON_ATTN"]),
        (["--dtype", "float32"], ["--attention-backend", "TRITON_ATTN"]),
        (["-ac", '{"backend": "FLEX_ATTENTION"}'], ["--dtype", "float16"]),
        (["--attention-backend=TRITON_MLA", "--dtype=auto"], []),
    ],
)
def test_defaults_are_added_where_nothing_is_said(words, added):
    assert for_command(RULES, words, "demo").words == (*added, *words)


def test_options_of_a_call():
    chosen = for_call(RULES, {"dtype": "float32", "seed": 1}, "demo")
    assert chosen.options == {"attention_backend": "TRITON_ATTN", "dtype": "float32", "seed": 1}
    assert chosen.defaults == {"attention-backend": "TRITON_ATTN"}
    asked = {"backend": "FLASH_ATTN"}
    for options in ({"attention_backend": "FLASH_ATTN"}, {"attention_config": asked}):
        with pytest.raises(ContractError, match="cannot run so"):
            for_call(RULES, options, "demo")
