"""Does the wheel carry traces of where it was built, or secrets?"""

from __future__ import annotations

from builder.audit.contents import Contents
from builder.audit.policy import Policy
from builder.audit.report import Check


def check_paths(contents: Contents, policy: Policy) -> Check:
    """No absolute path of a build in any member."""
    required = f"no path below {' '.join(policy.forbidden_paths)}"
    places = _places(contents, "path")
    if not places:
        return Check("build paths", "pass", required, "none")
    return Check(
        "build paths",
        "fail",
        required,
        f"{len(places)} in {_members(contents, 'path')} members",
        where=places,
        remedy="compile with -ffile-prefix-map=OLD=NEW (nvcc: -Xcompiler) and strip; a path that "
        "is meant for the host goes into paths.allowed of the audit's policy",
    )


def check_secrets(contents: Contents, policy: Policy) -> Check:
    """No credentials: by the names of members, and by known shapes in their bytes."""
    required = "no private keys, tokens, credential files or .git folders"
    named = tuple(
        f"{member.path}: by its name"
        for member in contents.members
        if policy.secret_member.fullmatch(member.path)
    )
    places = named + _places(contents, "secret")
    if not places:
        return Check("secrets", "pass", required, "none")
    return Check(
        "secrets",
        "fail",
        required,
        f"{len(places)} found",
        where=places,
        remedy="revoke what was exposed, take it out of the sources, and build again",
    )


def _places(contents: Contents, kind: str) -> tuple[str, ...]:
    return tuple(
        f"{member.path} at byte {finding.offset}: {finding.text}"
        for member in contents.members
        for finding in member.findings
        if finding.kind == kind
    )


def _members(contents: Contents, kind: str) -> int:
    return sum(
        any(finding.kind == kind for finding in member.findings) for member in contents.members
    )
