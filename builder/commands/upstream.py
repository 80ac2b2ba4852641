"""`builder upstream`"""

from __future__ import annotations

from pathlib import Path

import click

from builder.commands.options import cache_option, open_cache
from kvreg.console import emit, handled, json_option, note

git_option = click.option(
    "--git",
    metavar="REMOTE",
    envvar="KVREG_UPSTREAM_GIT",
    help="A git remote of upstream: its tags are compared with the locked commits.",
)


@click.group()
def upstream() -> None:
    """Follow upstream's releases: what they mean for each profile, before anything is compiled.

    \b
    Examples:
      builder upstream check
      builder upstream check --since v0.18.1 --profile t4x2-cu128 --json
      builder upstream propose v0.19.1 --profile t4x2-cu128
    """


@upstream.command()
@click.option(
    "--since", metavar="TAG", help="Oldest release to judge [default: the profile's own]."
)
@click.option(
    "--profile", "-p", "names", multiple=True, help="Profile; may be repeated [default: all]."
)
@click.option(
    "--exit-code", is_flag=True, help="End with status 10 when a profile can be rebuilt or renewed."
)
@click.option("--details", is_flag=True, help="Every finding, with file and line to look at.")
@click.option(
    "--github",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="GITHUB_OUTPUT",
    help="Also write what is worth a proposal as outputs of a step to this file.",
)
@git_option
@cache_option
@json_option
@handled
def check(
    since: str | None,
    names: tuple[str, ...],
    exit_code: bool,
    details: bool,
    github: Path | None,
    git: str | None,
    cache_root: Path | None,
    as_json: bool,
) -> None:
    """Judge the releases in the package index against the profiles.

    From each release's own metadata and build files, read by HTTP range: the torch it pins against
    the host's, its Python range, CUDA, the architectures and kernels that its build files name,
    externals and their commits, requirements, and whether the overlay still resolves. A locked
    file that the index has with other bytes now, or a tag that moved, ends it with status 1.

    \b
    Examples:
      builder upstream check
      builder upstream check --since v0.18.1 --profile t4x2-cu128 --json
    """
    import json

    from builder.ci import github_output
    from builder.index import PackageIndex
    from builder.layout import find_checkout
    from builder.upstream import watch
    from builder.upstream.policy import load_policy

    checkout = find_checkout()
    following = watch.followers(checkout, load_policy(), names)
    cache = open_cache(cache_root)
    report = watch.check(
        checkout, following, PackageIndex(), cache, since=since, git=git, say=note
    ).to_dict()
    emit(report, as_json, lambda r: watch.text(r, details=details))
    if github is not None:
        found = watch.proposals(checkout, report)
        values = {"proposals": json.dumps({"include": found}), "count": str(len(found))}
        github_output(github, values)
    if exit_code and any(j["verdict"] in ("rebuild", "new-profile") for j in report["judgements"]):
        raise click.exceptions.Exit(10)


@upstream.command()
@click.argument("tag")
@click.option(
    "--profile", "-p", "profile_name", required=True, help="Profile that it is derived from."
)
@click.option("--name", help="Name of the derived profile [default: from CUDA or release].")
@click.option(
    "--host-freeze",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Output of pip freeze on the host that it is for [default: the old profile's list, where"
    " the host need not change].",
)
@click.option(
    "--summary",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write changes, findings and open decisions as Markdown to this file.",
)
@click.option(
    "--hosts",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Package lists of a published image, as kvreg drift takes them; may be repeated. The"
    " summary says which of them the derived profile fits.",
)
@git_option
@cache_option
@json_option
@handled
def propose(
    tag: str,
    profile_name: str,
    name: str | None,
    host_freeze: Path | None,
    summary: Path | None,
    hosts: tuple[Path, ...],
    git: str | None,
    cache_root: Path | None,
    as_json: bool,
) -> None:
    """Write a derived profile for a release, with its locks, ready to review.

    The profile is the old one with name, versions, CUDA, driver and toolchains changed as the
    release needs; comments stay. Inputs and, where the host's packages are known, the overlay are
    locked. What changed and what a person must still decide is said. Nothing is compiled.

    \b
    Examples:
      builder upstream propose v0.19.1 --profile t4x2-cu128
      builder upstream propose v0.20.2 --profile t4x2-cu128 --host-freeze pip-freeze.txt --json
    """
    from builder.files import write_bytes
    from builder.index import PackageIndex
    from builder.layout import find_checkout
    from builder.upstream import propose as proposing
    from builder.upstream.policy import load_policy
    from builder.upstream.watch import followers

    checkout = find_checkout()
    (follower,) = followers(checkout, load_policy(), [profile_name])
    proposal = proposing.propose(
        checkout,
        follower,
        tag,
        PackageIndex(),
        open_cache(cache_root),
        name=name,
        host_freeze=host_freeze,
        hosts=hosts,
        git=git,
        say=note,
    ).to_dict()
    if summary is not None:
        write_bytes(summary, proposing.page(proposal).encode())
    emit(proposal, as_json, proposing.text)
