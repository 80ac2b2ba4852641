"""Figures out of control groups of both versions and out of the engine's statistics."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from builder.engine_usage import Usage, find_group, from_statistics

ID = "ab" * 32


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_control_group_version_1(tmp_path: Path) -> None:
    _write(
        tmp_path / "proc/42/cgroup",
        f"4:memory:/docker/{ID}\n2:cpuacct:/docker/{ID}\n1:cpu:/docker/{ID}\n0::/docker/{ID}\n",
    )
    memory = tmp_path / "fs/memory/docker" / ID
    _write(memory / "memory.stat", "cache 999\nrss 100\ntotal_cache 999\ntotal_rss 300\n")
    _write(memory / "memory.max_usage_in_bytes", "5000\n")
    _write(memory / "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    _write(tmp_path / "fs/cpuacct/docker" / ID / "cpuacct.usage", "2500000000\n")
    group = find_group(42, ID, tmp_path / "proc", tmp_path / "fs")
    assert group is not None and group.version == 1
    assert group.read() == Usage(2.5, 300, 5000, 1)


def test_control_group_version_2(tmp_path: Path) -> None:
    _write(tmp_path / "proc/42/cgroup", f"0::/system.slice/docker-{ID}.scope\n")
    folder = tmp_path / f"fs/system.slice/docker-{ID}.scope"
    _write(folder / "memory.stat", "anon 300\nfile 999\n")
    _write(folder / "memory.events", "low 0\noom 0\noom_kill 0\n")
    _write(folder / "cpu.stat", "usage_usec 1500000\nuser_usec 1\n")
    group = find_group(42, ID, tmp_path / "proc", tmp_path / "fs")
    assert group is not None and group.version == 2
    assert group.read() == Usage(1.5, 300, None, 0)
    _write(folder / "memory.peak", "7000\n")
    assert group.read().high_water_bytes == 7000


def test_somebody_elses_process_is_not_taken_for_the_container(tmp_path: Path) -> None:
    _write(tmp_path / "proc/42/cgroup", "0::/user.slice\n")
    _write(tmp_path / "fs/user.slice/memory.stat", "anon 1\n")
    assert find_group(42, ID, tmp_path / "proc", tmp_path / "fs") is None
    assert find_group(43, ID, tmp_path / "proc", tmp_path / "fs") is None


def test_statistics_of_docker_and_podman() -> None:
    cpu = {"cpu_usage": {"total_usage": 3_000_000_000}}
    old = {"usage": 9, "max_usage": 12, "stats": {"rss": 1, "total_rss": 4}}
    assert from_statistics({"cpu_stats": cpu, "memory_stats": old}) == Usage(3.0, 4, 12)
    new = {"usage": 9, "stats": {"anon": 5, "file": 4}}
    assert from_statistics({"cpu_stats": cpu, "memory_stats": new}) == Usage(3.0, 5, None)
    assert from_statistics({"memory_stats": {"usage": 9}}) == Usage(0.0, 9, None)
    assert from_statistics({}) == Usage()


@given(
    *[
        st.builds(
            Usage,
            st.floats(0, 1e6),
            st.integers(0, 10**12),
            st.none() | st.integers(0, 10**12),
            st.integers(0, 3),
        )
    ]
    * 2
)
def test_figures_only_grow(one: Usage, two: Usage) -> None:
    both = one.join(two)
    assert both == two.join(one)
    assert both.join(one) == both
    assert both.cpu_seconds >= one.cpu_seconds and both.peak_memory_bytes >= one.peak_memory_bytes
