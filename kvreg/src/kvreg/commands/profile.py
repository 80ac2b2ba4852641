"""``kvreg profile``: list, show, validate, digest."""

import sys

import click

from kvreg import catalogue
from kvreg.console import emit, handled, json_option
from kvreg.errors import ContractError, KvregError
from kvreg.model.profile import Profile


@click.group("profile")
def command() -> None:
    """List, show, validate and digest profiles.

    A PROFILE is a name, the path of a profile's folder (with a slash in it), or sha256:<hex>.

    \b
    Examples:
      kvreg profile list
      kvreg profile show t4x2-cu128
      kvreg profile show t4x2-cu128 --canonical | sha256sum
      kvreg profile validate ./profiles/t4-probe
    """


@command.command("list")
@json_option
@handled
def list_command(as_json: bool) -> None:
    """List the profiles that are known here.

    \b
    Examples:
      kvreg profile list
      KVREG_PROFILES=./profiles kvreg profile list --json
    """
    emit([_row(entry) for entry in catalogue.entries()], as_json, _table)


@command.command()
@click.argument("profile")
@click.option("--canonical", is_flag=True, help="Print the exact bytes that the digest is of.")
@json_option
@handled
def show(profile: str, canonical: bool, as_json: bool) -> None:
    """Show one profile: its runtime, host contract and digest.

    \b
    Examples:
      kvreg profile show t4x2-cu128
      kvreg profile show t4x2-cu128 --canonical | sha256sum
    """
    found = catalogue.find_profile(profile)
    if canonical:
        # No newline: these are the bytes of the artifact's config blob.
        sys.stdout.buffer.write(found.canonical())
        sys.stdout.buffer.flush()
        return
    emit(found, as_json, _description)


@command.command()
@click.argument("profiles", nargs=-1, metavar="[PROFILE]...")
@click.option(
    "--allow-missing-locks", is_flag=True, help="Accept lock files that do not exist yet."
)
@json_option
@handled
def validate(profiles: tuple[str, ...], allow_missing_locks: bool, as_json: bool) -> None:
    """Check profiles and report every problem; all known ones when none is named.

    \b
    Examples:
      kvreg profile validate
      kvreg profile validate ./profiles/t4-probe --allow-missing-locks
    """
    results = []
    for name in profiles or catalogue.folders():
        try:
            found = catalogue.find_profile(name, allow_missing_locks=allow_missing_locks)
            results.append({"profile": name, "valid": True, "digest": _digest(found)})
        except ContractError as error:
            results.append({"profile": name, "valid": False, "error": error.to_dict()})
            if not as_json:
                click.echo(f"error: {error}", err=True)
    emit(results, as_json, _validation)
    if not all(result["valid"] for result in results):
        sys.exit(ContractError.exit_code)


@command.command()
@click.argument("profile")
@json_option
@handled
def digest(profile: str, as_json: bool) -> None:
    """Print the digest of a profile: sha256 over its canonical JSON, locks included.

    \b
    Examples:
      kvreg profile digest t4x2-cu128
    """
    found = catalogue.find_profile(profile)
    emit({"profile": found.name, "digest": found.digest}, as_json, lambda obj: obj["digest"])


def _row(entry: catalogue.Entry) -> dict[str, object]:
    if entry.profile is None:
        error: KvregError | None = entry.error
        return {
            "name": entry.name,
            "valid": False,
            "folder": str(entry.folder),
            "error": error.to_dict() if error else None,
        }
    profile = entry.profile
    return {
        "name": profile.name,
        "valid": True,
        "digest": profile.digest,
        "runtime": f"{profile.runtime.package} {profile.runtime.version}",
        "summary": profile.summary,
        "folder": str(entry.folder),
    }


def _table(rows: list[dict[str, object]]) -> str:
    if not rows:
        return f"no profiles are known; set ${catalogue.ENVIRONMENT} to a directory of profiles"
    width = max(len(str(row["name"])) for row in rows)
    lines = []
    for row in rows:
        if row["valid"]:
            text = f"{str(row['digest'])[:19]}  {row['runtime']}\n{'':{width}}  {row['summary']}"
        else:
            text = f"invalid; see: kvreg profile validate {row['name']}"
        lines.append(f"{row['name']:<{width}}  {text}")
    return "\n".join(lines)


def _description(profile: Profile) -> str:
    runtime, build = profile.runtime, profile.build
    upstream = f"{runtime.upstream_tag} {runtime.upstream_commit}".strip() or "-"
    lines = [
        f"{profile.name}: {profile.summary}",
        f"digest    {profile.digest}",
        f"id        {profile.id}",
        f"runtime   {runtime.package} {runtime.version} ({runtime.role})",
        f"upstream  {upstream}",
        f"build     {build.recipe}, SM {' '.join(build.compute_capabilities)}, "
        f"toolchains: {', '.join(build.toolchains)}",
        "",
        *host_contract(profile),
    ]
    if build.omissions:
        lines += ["", "left out on purpose:"]
        lines += [f"  {omission.name}: {omission.reason}" for omission in build.omissions]
    return "\n".join(lines)


def host_contract(profile: Profile) -> list[str]:
    """The lines of a table: what the profile asks of a host, fact by fact, and of the compiler."""
    facts = [("fact", "require", "validated")]
    facts += [(key, fact.require, fact.validated) for key, fact in profile.host.facts()]
    facts.append(("nvcc", profile.build.cuda.require, profile.build.cuda.validated))
    widths = [max(len(row[column]) for row in facts) for column in range(2)]
    return [f"{key:<{widths[0]}}  {require:<{widths[1]}}  {value}" for key, require, value in facts]


def _digest(profile: Profile) -> str | None:
    missing = any(lock.sha256 is None for lock in profile.locks.values())
    return None if missing else profile.digest


def _validation(results: list[dict[str, object]]) -> str:
    return "\n".join(
        f"{'valid  ' if result['valid'] else 'invalid'}  {result['profile']}"
        + (f"  {result['digest']}" if result.get("digest") else "")
        for result in results
    )
