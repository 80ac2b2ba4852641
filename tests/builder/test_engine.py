"""The engine as its users see it: real containers of the toolchain image."""

import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from builder.engine import Engine, Mount, candidate_addresses, connect
from builder.errors import BuildError
from builder.toolchain import ToolchainImage
from kvreg.errors import NotFoundError, UsageError
from tests.support.toolchain import engine, toolchain_image

__all__ = ["engine", "toolchain_image"]

USER = "1000:1000"


def test_docker_host_is_the_only_candidate_when_set() -> None:
    environment = {"DOCKER_HOST": "tcp://10.0.0.1:2375", "XDG_RUNTIME_DIR": "/run/user/7"}
    assert candidate_addresses(environment) == ("tcp://10.0.0.1:2375",)


def test_docker_and_podman_sockets_are_candidates() -> None:
    found = candidate_addresses({"XDG_RUNTIME_DIR": "/run/user/7"})
    assert found[0] == "unix:///var/run/docker.sock"
    assert "unix:///run/podman/podman.sock" in found
    assert "unix:///run/user/7/podman/podman.sock" in found


def test_no_engine_names_what_was_tried_and_how_to_start_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    silent = tmp_path / "stale.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(silent))  # a socket file that outlived its engine
    absent = tmp_path / "absent.sock"
    addresses = (f"unix://{silent}", f"unix://{absent}")
    monkeypatch.setattr("builder.engine.candidate_addresses", lambda environment: addresses)
    with pytest.raises(NotFoundError) as caught:
        connect({})
    text = str(caught.value)
    assert f"unix://{silent}: the socket is there, but nothing listens on it" in text
    assert f"unix://{absent}: there is no such socket" in text
    assert "apt-get install docker.io" in text and "podman.socket" in text
    assert caught.value.exit_code == 3


def test_a_named_engine_that_is_silent_is_not_replaced_by_another(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError) as caught:
        connect({"DOCKER_HOST": f"unix://{tmp_path}/none.sock"})
    assert [p.where for p in caught.value.problems] == [f"unix://{tmp_path}/none.sock"]
    assert "DOCKER_HOST" in (caught.value.remedy or "")


def test_a_socket_that_answers_nonsense_is_no_engine(tmp_path: Path) -> None:
    path = tmp_path / "odd.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer() -> None:
            with suppress(OSError):
                connection, _ = listener.accept()
                connection.recv(1000)
                connection.sendall(b"hello\n")
                connection.close()

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(NotFoundError, match="no usable answer"):
            connect({"DOCKER_HOST": f"unix://{path}"})


@pytest.mark.engine
def test_lines_of_both_streams_arrive_while_the_command_runs(
    engine: Engine, toolchain_image: ToolchainImage
) -> None:
    seen: dict[str, float] = {}
    script = "echo first; echo second >&2; sleep 2; printf 'last, unfinished'"
    result = engine.run(
        toolchain_image.image_digest,
        ["/bin/sh", "-c", script],
        on_line=lambda line: seen.setdefault(line, time.monotonic()),
    )
    assert result.exit_code == 0
    assert set(seen) == {"first", "second", "last, unfinished"}
    assert seen["last, unfinished"] - seen["first"] > 1


@pytest.mark.engine
def test_exit_code_and_cost(engine: Engine, toolchain_image: ToolchainImage) -> None:
    program = (
        "import time; x = bytearray(300 << 20); x[::4096] = b'x' * len(x[::4096])\n"
        "end = time.process_time() + 2\n"
        "while time.process_time() < end: pass\n"
        "raise SystemExit(7)"
    )
    result = engine.run(
        toolchain_image.image_digest, ["python3.12", "-I", "-c", program], user=USER
    )
    assert result.exit_code == 7
    assert result.seconds >= 2
    assert 1 < result.cpu_seconds < 4
    assert 300 << 20 <= result.peak_memory_bytes < 450 << 20
    assert not result.out_of_memory


@pytest.mark.engine
def test_there_is_no_network(engine: Engine, toolchain_image: ToolchainImage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        program = f"""
import os, socket
print("interfaces", sorted(os.listdir("/sys/class/net")))
for name, what in (("host", ("127.0.0.1", {port})), ("outside", ("192.0.2.1", 80))):
    try:
        socket.create_connection(what, timeout=5)
        print(name, "reached")
    except OSError as error:
        print(name, "unreachable", error.errno)
try:
    socket.getaddrinfo("localhost.example", 80)
    print("name resolved")
except OSError:
    print("no name")
"""
        lines: list[str] = []
        engine.run(
            toolchain_image.image_digest,
            ["python3.12", "-I", "-c", program],
            on_line=lines.append,
        )
    assert lines[0] == "interfaces ['lo']"
    assert lines[1].startswith("host unreachable")
    assert lines[2].startswith("outside unreachable")
    assert lines[3] == "no name"


@pytest.mark.engine
def test_mounts_are_read_only_unless_asked_for(
    engine: Engine, toolchain_image: ToolchainImage, tmp_path: Path
) -> None:
    inputs, out = tmp_path / "inputs", tmp_path / "out"
    inputs.mkdir()
    out.mkdir()
    (inputs / "a").write_text("as it was")
    script = (
        "cat /inputs/a; echo; (echo changed > /inputs/a) 2>&1; (touch /inputs/b) 2>&1;"
        "mount -o remount,rw /inputs 2>&1; echo done > /out/result"
    )
    lines: list[str] = []
    result = engine.run(  # as root: not even root may
        toolchain_image.image_digest,
        ["/bin/sh", "-c", script],
        mounts=[Mount(inputs, "/inputs"), Mount(out, "/out", read_only=False)],
        on_line=lines.append,
    )
    assert result.exit_code == 0
    assert lines[0] == "as it was"
    assert sum("Read-only file system" in line for line in lines) == 2
    assert (inputs / "a").read_text() == "as it was"
    assert [p.name for p in inputs.iterdir()] == ["a"]
    assert (out / "result").read_text() == "done\n"


@pytest.mark.engine
def test_nothing_of_this_process_is_inherited(
    toolchain_image: ToolchainImage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KVREG_SECRET", "leak")
    # The SDK would hand on the proxies that its configuration file names.
    (tmp_path / "config.json").write_text('{"proxies": {"default": {"httpProxy": "http://leak"}}}')
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    engine = connect()
    lines: list[str] = []
    engine.run(
        toolchain_image.image_digest,
        ["/bin/sh", "-c", "env; hostname; id -u; grep CapEff /proc/self/status"],
        environment={"MAX_JOBS": "2"},
        user=USER,
        on_line=lines.append,
    )
    assert "MAX_JOBS=2" in lines
    assert not any("leak" in line for line in lines)
    assert "kvreg-build" in lines and "1000" in lines
    assert lines[-1].split() == ["CapEff:", "0000000000000000"]
    variables = {line.split("=")[0] for line in lines if "=" in line}
    assert variables <= {
        *("PATH", "HOME", "HOSTNAME", "LANG", "LC_ALL", "TZ", "PWD", "MAX_JOBS", "SHLVL", "_"),
        *("CUDA_HOME", "CUDA_PATH", "CCACHE_COMPILERCHECK", "OLDPWD"),
        *("TERM", "container"),  # Podman's own
    }


@pytest.mark.engine
def test_a_memory_limit_is_reported_as_such(
    engine: Engine, toolchain_image: ToolchainImage
) -> None:
    result = engine.run(
        toolchain_image.image_digest,
        ["python3.12", "-I", "-c", "x = bytearray(512 << 20); x[::4096] = b'x' * len(x[::4096])"],
        memory=128 << 20,
    )
    assert result.exit_code == 137
    assert result.out_of_memory


@pytest.mark.engine
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_run_leaves_no_container(
    engine: Engine, toolchain_image: ToolchainImage, error: type[BaseException]
) -> None:
    def interrupt(line: str) -> None:
        raise error

    marker = f"marker-{os.getpid()}-{error.__name__}"
    with pytest.raises(error):
        engine.run(
            toolchain_image.image_digest,
            ["/bin/sh", "-c", f"echo {marker}; exec sleep 600"],
            on_line=interrupt,
        )
    containers = engine.client.api.containers(all=True)
    assert not [c for c in containers if marker in c["Command"]]


@pytest.mark.engine
def test_what_cannot_run_says_why(
    engine: Engine, toolchain_image: ToolchainImage, tmp_path: Path
) -> None:
    with pytest.raises(NotFoundError, match="no image sha256:0000"):
        engine.run("sha256:" + "0" * 64, ["true"])
    with pytest.raises(BuildError, match="cannot start") as caught:
        engine.run(toolchain_image.image_digest, ["/no/such/program"])
    assert "/no/such/program" in (caught.value.found or "")
    with pytest.raises(UsageError, match="nothing to mount at /inputs"):
        engine.run(
            toolchain_image.image_digest, ["true"], mounts=[Mount(tmp_path / "no", "/inputs")]
        )


@pytest.mark.engine
def test_the_engine_says_what_it_is(engine: Engine) -> None:
    info = engine.info
    assert info.kind in ("docker", "podman")
    assert info.version and info.cgroup_version in ("1", "2", "v1", "v2")
    assert info.address not in info.to_dict().values()
