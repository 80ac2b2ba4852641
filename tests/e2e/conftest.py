"""The command lines as a user runs them, in a checkout of their own."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.distribution import distribution

__all__ = ["distribution"]

ROOT = Path(__file__).resolve().parents[2]
TOOLCHAIN = "cuda-12.4-debian12"


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    def json(self):
        return json.loads(self.out)


@dataclass(frozen=True)
class Commands:
    """Runs the console scripts beside this interpreter."""

    root: Path
    environment: dict[str, str]

    def __call__(self, *argv: object, code: int | None = 0, **extra: str) -> Ended:
        program = Path(sys.executable).parent / str(argv[0])
        result = subprocess.run(
            [program, *map(str, argv[1:])],
            cwd=self.root,
            env=self.environment | extra,
            capture_output=True,
            text=True,
            check=False,
        )
        ended = Ended(result.returncode, result.stdout, result.stderr)
        if code is not None:
            assert ended.code == code, ended
        return ended


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Profiles and toolchains in a folder of their own, so that dist/ is a test's own too."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("profiles", "dockerfiles"):
        shutil.copytree(ROOT / name, root / name)
    return root


@pytest.fixture(scope="session")
def commands(checkout: Path) -> Commands:
    """`commands("builder", "build", …)`"""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KVREG_HOME")}
    return Commands(
        checkout,
        environment
        | {"KVREG_CHECKOUT": str(checkout), "KVREG_PROFILES": str(checkout / "profiles")},
    )


@pytest.fixture(scope="session")
def built_probe(commands: Commands) -> dict[str, object]:
    """t4-probe built by `builder build`: its JSON answer."""
    return commands(
        *("builder", "build", "--profile", "t4-probe", "--toolchain", TOOLCHAIN, "--json")
    ).json()


@pytest.fixture(scope="session")
def layout(commands: Commands, built_probe: dict[str, object]) -> str:
    """The OCI layout that t4-probe is published into."""
    commands("builder", "publish", "--profile", "t4-probe", "--to", "oci-layout:store")
    return "oci-layout:store"
