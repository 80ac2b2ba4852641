"""HTML out of values: every text is escaped where it enters, and nowhere else.

>>> str(element("td", {"class": "name", "hidden": False}, "a < b", Markup("&nbsp;")))
'<td class="name">a &lt; b&nbsp;</td>'
"""

import html
from collections.abc import Iterable, Mapping
from typing import Union

Child = Union["Markup", str, int, float, None, Iterable["Child"]]

_VOID = frozenset({"br", "hr", "img", "input", "meta", "link"})


class Markup(str):
    """Text that is markup already."""


def element(name: str, attributes: Mapping[str, object] | None = None, *children: Child) -> Markup:
    """One element. Attributes that are None or False are left out, True has no value."""
    parts = [f"<{name}"]
    for key, value in (attributes or {}).items():
        if value is True:
            parts.append(f" {key}")
        elif value is not None and value is not False:
            parts.append(f' {key}="{html.escape(str(value), quote=True)}"')
    parts.append(">")
    if name in _VOID:
        return Markup("".join(parts))
    return Markup("".join([*parts, join(children), f"</{name}>"]))


def join(children: Child) -> Markup:
    """Children one after the other; None is nothing."""
    if children is None:
        return Markup("")
    if isinstance(children, Markup):
        return children
    if isinstance(children, (str, int, float)):
        return Markup(html.escape(str(children), quote=False))
    return Markup("".join(join(child) for child in children))
