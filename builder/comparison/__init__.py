"""Two wheels side by side: which member differs, in which section, and why where that is known.

    from builder.comparison import compare_wheels
    found = compare_wheels(Path("a.whl"), Path("b.whl"))
    print(found.text())

Nothing of a wheel is executed, and both may be hostile.
"""

from builder.comparison.model import Comparison, Member, Part
from builder.comparison.wheels import compare_wheels

__all__ = ["Comparison", "Member", "Part", "compare_wheels"]
