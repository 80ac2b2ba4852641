"""Each generated Marlin source defines a name of its own, so that its object is reproducible."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from builder.recipes.model import recipe

GENERATOR = """
import os
for name in ("sm75_kernel_a", "sm75_kernel_b"):
    filename = f"{name}.cu"
    file_content = "template void f();"
    with open(os.path.join(os.path.dirname(__file__), filename), "w") as f:
        f.write(file_content)
"""
FOLDERS = ("csrc/quantization/marlin", "csrc/moe/marlin_moe_wna16")


def name_units(root: Path) -> None:
    """The recipe's own function; its module runs in the container alone."""
    tree = ast.parse(recipe("vllm").files["compile.py"].read_text())
    (found,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "name_units")
    names: dict = {"Path": Path, "sys": sys}
    exec(compile(ast.Module([found], []), "compile.py", "exec"), names)
    names["name_units"](root)


@pytest.fixture
def root(tmp_path):
    for folder in FOLDERS:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "generate_kernels.py").write_text(GENERATOR)
    return tmp_path


def test_every_unit_has_a_name_and_no_two_the_same(root):
    name_units(root)
    names = []
    for folder in FOLDERS:
        subprocess.run([sys.executable, "generate_kernels.py"], cwd=root / folder, check=True)
        for file in sorted((root / folder).glob("*.cu")):
            text = file.read_text()
            assert text.startswith("template void f();\n")
            definition = text.splitlines()[-1]
            assert definition.startswith('__attribute__((visibility("hidden"))) int kvreg_unit_')
            names.append(definition.split()[-3])
    assert len(set(names)) == len(names) == 4


def test_a_generator_that_changed_ends_the_build(root):
    (root / FOLDERS[1] / "generate_kernels.py").write_text("f.write(something_else)\n")
    with pytest.raises(SystemExit, match="marlin_moe_wna16"):
        name_units(root)
