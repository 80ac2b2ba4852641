"""One self-contained page: template, style, script and data in a file that loads nothing.

A content security policy of the page's own forbids everything but the inline style and script, by
their hashes; the data lies in an inert element, and only text nodes are made of it.
"""

import base64
import hashlib
import html
import json
import math
from importlib import resources
from typing import Any

from kvreg import __version__
from kvreg.report import sections
from kvreg.report.answers import verdicts
from kvreg.report.evidence import Evidence

STYLES = ("base.css", "verdicts.css", "charts.css", "print.css")
SCRIPTS = (
    *("dom.js", "state.js", "scale.js", "panel.js", "curves.js", "communication.js"),
    *("tables.js", "page.js"),
)

_DIGITS = 6  # of the numbers in the page; the tables beside it have all of them


def page(evidence: Evidence) -> str:
    """The page as HTML. The same evidence gives the same text."""
    style = "\n".join(map(_asset, STYLES))
    script = "\n".join(map(_asset, SCRIPTS))
    values = {
        "policy": html.escape(
            f"default-src 'none'; img-src data:; style-src '{_hash(style)}';"
            f" script-src '{_hash(script)}';"
            " base-uri 'none'; form-action 'none'"
        ),
        "title": html.escape(f"{evidence.title} · kvreg sweep report"),
        "heading": html.escape(evidence.title),
        "style": style,
        "script": script,
        "banners": sections.banners(evidence),
        "summary": sections.summary(evidence),
        "verdicts": verdicts(evidence),
        "limits": sections.limits(evidence),
        "identity": sections.identity(evidence),
        "cost": sections.cost(evidence),
        "method": sections.method(evidence),
        "files": sections.raw_files(evidence),
        "files_count": str(len(evidence.raw_files)),
        "files_open": " open" if len(evidence.raw_files) <= 8 else "",
        "version": html.escape(__version__),
        "data": _data(evidence),
    }
    parts = _asset("page.html").split("{{")
    text = [parts[0]]
    # One pass: what is put in is never searched for places again.
    for part in parts[1:]:
        name, _, rest = part.partition("}}")
        text += [values[name], rest]
    return "".join(text)


def _data(evidence: Evidence) -> str:
    data = {
        "analysis": evidence.analysis,
        "workloads": evidence.workloads(),
        "boundary_mib": evidence.boundary_mib,
        "simulated": evidence.simulated,
        "communication": [
            {"name": name, "result": result} for name, result in evidence.communication
        ],
    }
    text = json.dumps(_rounded(data), ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    # Inside <script>: no "<" can end the element or begin a comment.
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        short = float(f"{value:.{_DIGITS}g}")
        return int(short) if short.is_integer() and abs(short) < 1e15 else short
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value


def _asset(name: str) -> str:
    return resources.files("kvreg.report").joinpath("page", name).read_text("utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
