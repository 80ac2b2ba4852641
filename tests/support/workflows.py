"""Runs the steps of a GitHub Actions job here: expressions, environment and outputs for real.

Actions (``uses:``) are passed over, and what only a runner has is given by the caller.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"

GITHUB = {"server_url": "https://ci.example.org", "repository": "team/runtimes"}
"""What a runner says of where it runs, as the context `github`."""

_EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.S)


def load(name: str) -> dict[str, Any]:
    """A workflow by file name."""
    return yaml.safe_load((WORKFLOWS / name).read_text())


def lay_out(folder: Path) -> None:
    """What steps call, in a checkout at `folder`: the scripts, and the commands of this one."""
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "builder").symlink_to(Path(sys.executable).parent / "builder")


class StepFailed(AssertionError):
    """A step ended with another exit code than 0."""

    def __init__(self, label: str, done: subprocess.CompletedProcess[str]) -> None:
        super().__init__(f"{label}: {done.stdout[-2000:]}{done.stderr[-3000:]}")
        self.code = done.returncode


@dataclass
class Runner:
    """Runs jobs of one workflow in a folder. `contexts` holds what expressions may name."""

    workflow: dict[str, Any]
    folder: Path
    contexts: dict[str, Any]
    skipped: list[str] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)

    def run(self, name: str, skip: tuple[str, ...] = ()) -> dict[str, str]:
        """Run the steps of a job but those named; the job's outputs. Raises StepFailed."""
        job = self.workflow["jobs"][name]
        steps: dict[str, dict[str, Any]] = {}
        contexts = {**self.contexts, "steps": steps}
        for number, step in enumerate(job["steps"]):
            label = step.get("name") or step.get("uses") or str(number)
            if "uses" in step or label in skip:
                self.skipped.append(label)
                continue
            output = self.folder / f".output-{number}"
            output.touch()
            environment = {
                key: str(self._expand(str(value), contexts))
                for source in (self.workflow.get("env"), job.get("env"), step.get("env"))
                for key, value in (source or {}).items()
            }
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                cwd=self.folder,
                env={**os.environ, **environment, "GITHUB_OUTPUT": str(output)},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                raise StepFailed(label, done)
            self.ran.append(label)
            lines = output.read_text().splitlines()
            steps[step.get("id", label)] = {"outputs": dict(x.split("=", 1) for x in lines)}
        return {k: self._expand(v, contexts) for k, v in job.get("outputs", {}).items()}

    def kept(self, name: str) -> set[str]:
        """Names of the files that a job's uploads would find here."""
        patterns = [
            self._expand(step["with"]["path"], self.contexts)
            for step in self.workflow["jobs"][name]["steps"]
            if step.get("uses", "").startswith("actions/upload-artifact@")
        ]
        lines = (line for text in patterns for line in text.split())
        return {path.name for line in lines for path in self.folder.glob(line)}

    def _expand(self, text: str, contexts: dict[str, Any]) -> str:
        return _EXPRESSION.sub(lambda m: str(_value(m[1].strip(), contexts)), text)


def _value(expression: str, contexts: dict[str, Any]) -> Any:
    for part in expression.split("||"):
        if found := _atom(part.strip(), contexts):
            return found
    return ""


def _atom(text: str, contexts: dict[str, Any]) -> Any:
    if text.startswith("'"):
        return text.strip("'")
    if call := re.fullmatch(r"format\('([^']*)',\s*(.+)\)", text):
        return call[1].replace("{0}", str(_value(call[2], contexts)))
    found: Any = contexts
    for name in text.split("."):
        found = found.get(name, "") if isinstance(found, dict) else ""
    return found
