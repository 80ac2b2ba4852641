"""Ninja's log, the choice of jobs, and the page of a build record."""

import pytest
from click.testing import CliRunner

from builder.commands.record import record as record_command
from builder.jobs import choose_jobs
from builder.ninja import Unit, read_units

GIB = 1024**3

LOG = """# ninja log v7
0\t1500\t1\tCMakeFiles/_C.dir/csrc/cache_kernels.cu.o\tabc
100\t61100\t1\tCMakeFiles/_moe_C.dir/csrc/moe/ops.cu.o\tdef
61100\t62000\t1\t_C.abi3.so\tfff
0\t2500\t2\tCMakeFiles/_C.dir/csrc/cache_kernels.cu.o\tabc
5\t9\t1\tvllm-flash-attn/CMakeFiles/_vllm_fa2_C.dir/fa2_absent.cpp.o\t123
broken line
"""


def test_units_are_objects_with_their_last_time_slowest_first(tmp_path):
    (tmp_path / "log").write_text(LOG)
    assert read_units(tmp_path / "log") == (
        Unit("_moe_C", "csrc/moe/ops.cu", 61.0),
        Unit("_C", "csrc/cache_kernels.cu", 2.5),
        Unit("_vllm_fa2_C", "fa2_absent.cpp", 0.004),
    )


def test_without_a_log_there_are_no_units(tmp_path):
    assert read_units(tmp_path / "none") == ()


@pytest.mark.parametrize(
    ("cores", "memory", "jobs"),
    [(2, 24, 2), (16, 24, 4), (16, 128, 16), (4, 4, 1), (64, 12, 2)],
)
def test_jobs_follow_cores_and_memory_and_say_which(cores, memory, jobs):
    chosen = choose_jobs(cores=cores, memory=memory * GIB)
    assert chosen.count == jobs
    assert ("GiB of memory" in chosen.reason) == (jobs < cores)


def test_a_requested_number_of_jobs_wins():
    assert choose_jobs(7, cores=2, memory=GIB).count == 7


def test_what_is_no_record_is_refused(tmp_path):
    for text in ("", "[]", '{"schema": "other"}'):
        (tmp_path / "r.json").write_text(text)
        result = CliRunner().invoke(record_command, [str(tmp_path / "r.json")])
        assert result.exit_code == 2
        assert "not a build record" in result.output, result.output
