"""``kvreg doctor``."""

import sys
from pathlib import Path

import click

from kvreg.commands.options import facts_option, home_option, host_facts, known_profiles
from kvreg.console import emit, handled, json_option
from kvreg.errors import ContractError, NotFoundError, UsageError
from kvreg.home import Home
from kvreg.model.profile import Profile


@click.command("doctor")
@click.argument("profile", required=False, shell_complete=known_profiles)
@click.option(
    "--strict",
    is_flag=True,
    help="Fail as well for what is not validated and for what is unknown.",
)
@click.option(
    "--probe",
    is_flag=True,
    help="Run the native probe, which must be staged, on every GPU and between them.",
)
@facts_option
@home_option
@json_option
@handled
def command(
    profile: str | None,
    strict: bool,
    probe: bool,
    facts_file: Path | None,
    home: Path | None,
    as_json: bool,
) -> None:
    """Judge this host by the contract of a profile.

    Every fact is shown with what is required, what was validated and what was found: ok, not
    validated (within what is required, but not what was tested), violated, or unknown. If the
    profile's runtime is staged, its device code is held against the GPUs, its symbols against the
    host's torch, and its packages against the host's. Without PROFILE every known profile is
    judged and the best one shown. Nothing is imported, changed or run, but for --probe.

    \b
    Examples:
      kvreg doctor
      kvreg doctor t4x2-cu128
      kvreg doctor t4x2-cu128 --strict --json
      kvreg doctor t4x2-cu128 --probe
      kvreg doctor t4x2-cu128 --facts facts.json

    \b
    Exit codes: 0 nothing is violated (with --strict: everything is ok); 1 otherwise.
    """
    from kvreg.doctor.diagnosis import diagnose, diagnose_all, with_checks
    from kvreg.doctor.table import ranking, table
    from kvreg.facts import replayed

    facts_file = facts_file or replayed()
    if probe and facts_file:
        raise UsageError(
            "--probe and --facts exclude each other",
            expected="one of them: the probe runs here, the facts are of another host",
        )
    place = Home.find(home)
    facts = host_facts(facts_file, home)
    here = facts_file is None
    if profile is None:
        found = diagnose_all(facts, place, here=here)
    else:
        found = [diagnose(_profile(profile, place), facts, place, here=here)]
    if probe:
        from kvreg.doctor.probe import probe_checks

        checks = tuple(probe_checks(place, facts))
        found = [with_checks(item, checks) for item in found]
    best = found[0]
    if profile is None:
        result = {"best": best.profile, "profiles": [item.to_dict() for item in found]}
        emit(result, as_json, lambda _: ranking(found, strict=strict))
    else:
        result = best.to_dict()
        emit(result, as_json, lambda _: table(best, strict=strict))
    if not best.passes(strict=strict):
        sys.exit(ContractError.exit_code)


def _profile(text: str, home: Home) -> Profile:
    """The profile of this name, path or digest; one that only a staged runtime knows counts."""
    from kvreg import catalogue
    from kvreg.activation import find_runtime

    try:
        return catalogue.find_profile(text)
    except NotFoundError as error:
        try:
            return find_runtime(home, text).profile()
        except NotFoundError:
            raise error from None
