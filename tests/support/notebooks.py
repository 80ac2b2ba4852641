"""Executing the documentation's notebooks: their own cells, in a real kernel."""

import sys
from collections.abc import Mapping
from pathlib import Path

import nbformat
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

NEEDS_GPU = "needs-gpu"
INSTALLS = "installs"


def read(path: Path) -> nbformat.NotebookNode:
    """The notebook, checked against the format."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def execute(
    path: Path,
    environment: Mapping[str, str],
    folder: Path,
    *,
    python: Path | str = sys.executable,
    without: tuple[str, ...] = (NEEDS_GPU, INSTALLS),
    timeout: int = 120,
) -> dict[str, str]:
    """Run all cells but those with a tag in `without`; source -> what it printed.

    `environment` is the whole of the kernel's. Raises nbclient's error when a cell fails.
    """
    notebook = read(path)
    kept = [c for c in notebook.cells if not set(c.metadata.get("tags", ())) & set(without)]
    notebook.cells = kept
    manager = KernelManager(kernel_name="python3")
    manager.kernel_spec.argv = [
        *(str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"),
    ]  # fmt: skip
    manager.kernel_spec.env = {}
    client = NotebookClient(
        notebook, km=manager, timeout=timeout, resources={"metadata": {"path": str(folder)}}
    )
    client.execute(env=dict(environment), cwd=str(folder))
    return {
        cell.source: "".join(output.get("text", "") for output in cell.outputs)
        for cell in notebook.cells
        if cell.cell_type == "code"
    }
