"""The designs of the stages M1, M2 and M4, a smoke test and the case study, as plan files.

They are text to start from: written out, a plan is edited like any other file and then frozen.
"""

import json
from importlib import resources
from pathlib import Path

from kvreg import toml
from kvreg.errors import ContractError, NotFoundError, Problem, UsageError
from kvreg.sweep.reading import PlanReader

NAMES = ("smoke", "m1", "m2", "m4", "h200x2", "h200x2-no-peer", "h200x2-pilot", "case")

_PROMPTS = "case-prompts.toml"
_MARK = "# @prompts\n"
_LANGUAGE = r"[a-z]{2,3}"


def read_preset(name: str, prompts: Path | None = None) -> bytes:
    """The plan file of a preset; for ``case`` with the prompts of a file instead of its own.

    Raises `NotFoundError` for an unknown preset or a missing file, `UsageError` when another
    preset is given prompts and `ContractError` when the file of prompts is invalid.
    """
    if name not in NAMES:
        raise NotFoundError(
            "there is no such preset", expected="one of: " + ", ".join(NAMES), found=name
        )
    text = _data(f"{name}.toml")
    if _MARK in text:
        return text.replace(_MARK, _workloads(prompts)).encode()
    if prompts is not None:
        raise UsageError(f"the preset {name} has exact token counts and takes no prompts")
    return text.encode()


def _workloads(path: Path | None) -> str:
    """One workload a language, with all its prompts."""
    where = str(path) if path else _PROMPTS
    try:
        text = path.read_text(encoding="utf-8") if path else _data(_PROMPTS)
        tree = toml.loads(text)
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {where}") from None
    except ValueError as error:
        raise ContractError(f"{where} is not valid TOML: {error}") from None
    problems: list[Problem] = []
    root = PlanReader(tree, where, "", problems)
    output_tokens = root.integer("output_tokens", 1)
    found: dict[str, list[str]] = {}
    for item in root.tables("prompts"):
        language = item.text("language", _LANGUAGE, "a language code such as 'ar'")
        text = item.paragraph("text")
        found.setdefault(language, []).append(text)
        item.finish()
    root.finish()
    if not problems and not found:
        root.report("prompts", "there is none", expected="at least one")
    if problems:
        raise ContractError(f"the prompts in {where} are invalid", problems=problems)
    lines = []
    for language, texts in found.items():
        lines += ["[[workloads]]", f'name = "text-{language}"', f"output_tokens = {output_tokens}"]
        for text in texts:
            # Python's JSON strings are TOML basic strings too, but for a raw DEL.
            quoted = json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
            lines += ["", "[[workloads.prompts]]", f'language = "{language}"', f"text = {quoted}"]
        lines.append("")
    return "\n".join(lines)


def _data(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")
