"""`kvreg.LLM` and sharded state, with a module ``vllm`` of the runtime that records its calls."""

import json
import os
import subprocess
import sys

import pytest

from kvreg.errors import NotFoundError, UsageError
from kvreg.llm import save_sharded_state
from tests.kvreg.test_serve import ENGINE
from tests.support.overlays import publish_overlay
from tests.support.wheels import write_wheel

# What upstream's class is called with; the engine core saves one file a worker.
VLLM = b"""\
class LLM:
    def __init__(self, **options):
        self.options = options
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("KVREG_PROFILES", str(tmp_path / "catalogue"))
    for name in ("KVREG_RUNTIME", "DEMO_METHOD", "KVREG_VERIFY_KEY", "KVREG_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    wheels = tmp_path / "wheels"
    native = write_wheel(wheels, extra={"vllm/__init__.py": VLLM})
    overlay = write_wheel(wheels, "extra_pkg", "3", "py3-none-any")
    published = publish_overlay(tmp_path, native, [overlay], runtime=ENGINE)
    published.pull()
    return published.home.root


def python(code, home):
    ended = subprocess.run(
        [sys.executable, "-c", code, home],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
    return ended.returncode, ended.stdout, ended.stderr


def test_it_returns_upstreams_own_with_the_defaults_made_visible(home):
    code = (
        "import json, sys, kvreg\n"
        "llm = kvreg.LLM('model', profile='demo', home=sys.argv[1], check=False, dtype='float32',"
        " tensor_parallel_size=2)\n"
        "print(json.dumps([type(llm).__module__, llm.options, sys.modules['vllm'].__file__]))"
    )
    status, out, err = python(code, home)
    assert status == 0, err
    *said, last = out.splitlines()
    module, options, file = json.loads(last)
    assert module == "vllm"
    assert file.startswith(str(home / "runtimes"))
    assert options == {
        "model": "model",
        "attention_backend": "TRITON_ATTN",
        "dtype": "float32",
        "tensor_parallel_size": 2,
    }
    assert said[0].startswith("kvreg: demo, sha256:")
    assert said[1] == (
        "kvreg: vllm.LLM('model', attention_backend='TRITON_ATTN' (the profile's),"
        " dtype='float32', tensor_parallel_size=2)"
    )


def test_a_host_that_is_another_one_is_refused_with_every_reason(home):
    if os.path.exists("/proc/driver/nvidia/version"):  # noqa: PTH110
        pytest.skip("this machine has GPUs")
    code = (
        "import sys, kvreg\ntry:\n"
        "    kvreg.LLM('model', profile='demo', home=sys.argv[1])\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error, 'vllm' in sys.modules, kvreg.kernel.active())"
    )
    status, out, err = python(code, home)
    assert status == 0, err
    assert "this host is not the one that demo was made for" in out
    assert "gpu.count" in out
    assert out.rstrip().endswith("False None"), "nothing was imported or activated"


def test_what_is_denied_is_refused_before_anything_is_done(home):
    code = (
        "import sys, kvreg\ntry:\n    kvreg.LLM('m', profile='demo', home=sys.argv[1],"
        " attention_backend='FLASH_ATTN')\n"
        "except Exception as error:\n    print(error, kvreg.kernel.active())"
    )
    _, out, _ = python(code, home)
    assert "needs 8.0" in out
    assert out.rstrip().endswith("None")


class Engine:
    """Saves as upstream's engine core does: by a call with a path."""

    def __init__(self):
        self.llm_engine = self.engine_core = self

    def save_sharded_state(self, path, pattern=None, max_size=None):
        with open(f"{path}/model-rank-0-part-0.safetensors", "wb") as file:  # noqa: PTH123
            file.write(b"part")


def test_sharded_state_is_saved_by_upstream_with_what_belongs_to_it(tmp_path):
    model = tmp_path / "model"
    (model / "tokens").mkdir(parents=True)
    for name in (
        "config.json",
        "tokens/a.txt",
        "model.safetensors",
        "model.safetensors.index.json",
    ):
        (model / name).write_text(name)
    target = save_sharded_state(Engine(), model, tmp_path / "sharded")
    found = sorted(str(p.relative_to(target)) for p in target.rglob("*") if p.is_file())
    assert found == ["config.json", "model-rank-0-part-0.safetensors", "tokens/a.txt"]
    with pytest.raises(UsageError, match="not an empty folder"):
        save_sharded_state(Engine(), model, target)
    with pytest.raises(NotFoundError, match="is no folder"):
        save_sharded_state(Engine(), "Qwen/Qwen2.5-3B-Instruct", tmp_path / "other")
