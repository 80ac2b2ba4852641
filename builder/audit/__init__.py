"""Is a wheel what its profile says? A gate before anything is published.

>>> from builder.audit import audit_wheel  # doctest: +SKIP
>>> report = audit_wheel(Path("x.whl"), load_profile(Path("profiles/t4-probe")))  # doctest: +SKIP
>>> report.ok, [check.name for check in report.failures]  # doctest: +SKIP
(True, [])
"""

from builder.audit.auditor import audit_wheel
from builder.audit.report import AuditReport, Check, Module

__all__ = ["AuditReport", "Check", "Module", "audit_wheel"]
