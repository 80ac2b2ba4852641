"""The quick start's cells, in a real kernel, as far as a machine without a GPU allows."""

import ast
import os
import sys
from pathlib import Path

import pytest
from jupyter_client.kernelspec import NoSuchKernel

from tests.kvreg.test_serve import ENGINE
from tests.support.notebooks import INSTALLS, NEEDS_GPU, execute, read
from tests.support.overlays import publish_overlay
from tests.support.wheels import write_wheel

QUICKSTART = Path(__file__).parents[2] / "docs/notebooks/quickstart.ipynb"


@pytest.mark.parametrize("offline", [False, True], ids=["online", "offline"])
def test_the_quick_start_runs(tmp_path, offline):
    wheels = tmp_path / "wheels"
    overlay = write_wheel(wheels, "extra_pkg", "3", "py3-none-any")
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    folder = inputs / "dataset" if offline else tmp_path / "published"
    folder.mkdir(exist_ok=True)
    published = publish_overlay(folder, write_wheel(wheels), [overlay], runtime=ENGINE)
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("KVREG_")},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "KVREG_PROFILE": "demo",
        "KVREG_PROFILES": str(folder / "catalogue"),
        "KVREG_HOME": str(tmp_path / "home"),
        "KVREG_INPUTS": str(inputs),
        "IPYTHONDIR": str(tmp_path / "ipython"),
    }
    if not offline:
        environment["KVREG_REGISTRY"] = f"oci-layout:{published.layout}"
    work = tmp_path / "work"
    work.mkdir()
    try:
        printed = execute(QUICKSTART, environment, work)
    except NoSuchKernel:
        pytest.fail("ipykernel is not installed with its kernel specification")
    text = "\n".join(printed.values())
    for said in (
        "native   demo-pkg 1.2+cu128.sm75",
        "overlay  extra-pkg 3",
        "intact: demo",
        "demo is active: sha256:",
        "2 packages of the runtime, the same in the kernel and in its children",
        "--attention-backend TRITON_ATTN --dtype float16 --tensor-parallel-size 2",
        "still imported from the runtime: ()",
    ):
        assert said in text
    doctor = next(out for source, out in printed.items() if "kvreg doctor" in source)
    assert "gpu.count" in doctor


def test_it_is_kept_without_output_and_its_cells_say_what_they_need():
    notebook = read(QUICKSTART)
    text = ""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            text = cell.source
            continue
        assert cell.outputs == []
        assert cell.execution_count is None
        tags = set(cell.metadata.get("tags", ()))
        assert tags <= {NEEDS_GPU, INSTALLS}
        magic = cell.source.startswith(("!", "%"))
        if not magic:
            ast.parse(cell.source)
        if NEEDS_GPU in tags and "sharded" not in text:
            assert "**Needs two T4s" in text
        assert "kvreg.LLM" not in cell.source or NEEDS_GPU in tags
