"""`builder ci` and `builder matrix`"""

from __future__ import annotations

from pathlib import Path

import click

from builder.commands.options import cache_option, open_cache, profile_option
from kvreg.console import emit, handled, human_bytes, json_option, note

github_option = click.option(
    "--github",
    "github",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="GITHUB_OUTPUT",
    help="Also write the result as outputs of a step to this file.",
)


@click.group()
def ci() -> None:
    """What runners do, so that workflows hold no shell.

    \b
    Examples:
      builder ci build --profile t4-probe --registry ghcr.io/OWNER/runtimes
      builder ci pull-request profiles/t4x2-cu128-v0.19.1 --body proposal.md
    """


@ci.command()
@profile_option
@click.option("--registry", required=True, metavar="REF", help="Store of artifacts and caches.")
@click.option("--toolchain", help="Toolchain [default: the profile's first].")
@click.option("--jobs", "-j", type=click.IntRange(1), help="Compiler processes at once.")
@click.option("--compile-cache-limit", metavar="SIZE", envvar="KVREG_COMPILE_CACHE_LIMIT")
@click.option(
    "--key",
    "key_path",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Sign the artifact and its provenance with this private key.",
)
@click.option("--verify-key", metavar="FILE", help="Take only what one of these keys has signed.")
@click.option("--builder-id", metavar="URI", envvar="KVREG_BUILDER_ID")
@cache_option
@json_option
@handled
def build(
    profile_name: str,
    registry: str,
    toolchain: str | None,
    jobs: int | None,
    compile_cache_limit: str | None,
    key_path: Path | None,
    verify_key: str | None,
    builder_id: str | None,
    cache_root: Path | None,
    as_json: bool,
) -> None:
    """Take or build, audit, publish and sign a profile, with the compile cache of the registry.

    What was built from the same inputs, recipe and toolchain is taken from the registry. Else the
    compile cache is restored, the wheel is built and audited, and the cache is saved, even when the
    build fails: the next runner goes on from it.

    \b
    Examples:
      builder ci build --profile t4-probe --registry oci-layout:dist/registry --json
      builder ci build --profile t4x2-cu128 --registry ghcr.io/OWNER/runtimes --key kvreg.key
    """
    from builder.ci import build_and_publish
    from builder.compile_cache import DEFAULT_LIMIT, parse_size
    from builder.provenance import check_builder_id
    from kvreg.settings import required_keys
    from registry.commands.signing import ask_password
    from registry.privatekey import read_private_key
    from registry.store import open_store

    limit = compile_cache_limit or DEFAULT_LIMIT
    parse_size(limit)
    check_builder_id(builder_id)
    key = read_private_key(key_path, ask_password) if key_path else None
    with open_store(registry) as store:
        outcome = build_and_publish(
            profile_name,
            store,
            open_cache(cache_root),
            toolchain=toolchain,
            jobs=jobs,
            limit=limit,
            key=key,
            keys=required_keys(verify_key) if verify_key else (),
            builder_id=builder_id,
            say=note,
        )
    emit(
        outcome,
        as_json,
        lambda o: (
            f"{o.published['digest']} in {registry}: "
            f"{'taken as it was' if o.answered else 'built'} in {o.seconds:.0f} s, "
            f"{human_bytes(o.published['uploaded_bytes'])} sent"
        ),
    )


@ci.command("pull-request")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--body",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Its text: what builder upstream propose --summary wrote.",
)
@click.option("--title", help="[default: the first heading of the body]")
@click.option("--remote", default="origin", show_default=True)
@click.option("--push-only", is_flag=True, help="Push the branch and open nothing.")
@json_option
@handled
def pull_request(
    folder: Path, body: Path, title: str | None, remote: str, push_only: bool, as_json: bool
) -> None:
    """Commit a proposed profile on a branch of its own, push it and open a pull request.

    \b
    Examples:
      builder ci pull-request profiles/t4x2-cu128-v0.19.1 --body proposal.md
    """
    from builder.layout import find_checkout
    from builder.pullrequest import open_pull_request

    heading = title or body.read_text("utf-8").partition("\n")[0].lstrip("# ")
    opened = open_pull_request(
        find_checkout().root, folder, heading, body, remote=remote, push_only=push_only
    )
    emit(opened, as_json, lambda o: o.url or f"pushed {o.branch} at {o.commit}")


@click.command("matrix")
@click.option("--profile", "-p", "names", multiple=True, help="Profile; may be repeated.")
@click.option("--toolchain", help="Taken where a profile names it, in place of its first.")
@click.option(
    "--runner",
    "runners",
    multiple=True,
    metavar="SIZE=LABEL",
    help="Label of the runners of a size; may be repeated.",
)
@click.option("--missing-from", metavar="REF", help="Leave out what this store has already.")
@click.option(
    "--published-in", metavar="REF", help="What `builder rebuild` can check: what this store has."
)
@click.option(
    "--unjudged", is_flag=True, help="With --published-in: leave out what has a rebuild's verdict."
)
@click.option("--kubernetes", is_flag=True, help="Print Kubernetes Jobs instead of a matrix.")
@click.option("--image", help="Kubernetes: image with this checkout at /work and the builder.")
@click.option("--engine-image", help="Kubernetes: image of a container engine, run privileged.")
@click.option("--registry", metavar="REF", help="Kubernetes: where artifacts and caches go.")
@click.option("--cache-claim", help="Kubernetes: volume claim for the input cache.")
@click.option("--registry-secret", help="Kubernetes: secret of type dockerconfigjson.")
@click.option("--namespace", help="Kubernetes: namespace of the Jobs.")
@github_option
@json_option
@handled
def matrix(
    names: tuple[str, ...],
    toolchain: str | None,
    runners: tuple[str, ...],
    missing_from: str | None,
    published_in: str | None,
    unjudged: bool,
    kubernetes: bool,
    image: str | None,
    engine_image: str | None,
    registry: str | None,
    cache_claim: str | None,
    registry_secret: str | None,
    namespace: str | None,
    github: Path | None,
    as_json: bool,
) -> None:
    """Which profiles are built with which toolchain, and what each needs.

    With --json it is a GitHub Actions matrix; with --kubernetes a List of Jobs, which
    `kubectl apply -f -` takes. With --published-in its jobs are rebuilds, each of one artifact.

    \b
    Examples:
      builder matrix --json
      builder matrix --missing-from ghcr.io/OWNER/runtimes --runner large=big-linux
      builder matrix --published-in ghcr.io/OWNER/runtimes --unjudged --json
      builder matrix --kubernetes --image IMAGE --engine-image IMAGE --registry HOST/REPOSITORY
    """
    import json
    from contextlib import ExitStack

    from builder.ci import github_output
    from builder.kubernetes import Site, manifests
    from builder.layout import find_checkout
    from builder.matrix import matrix as make_matrix
    from builder.rebuild.backlog import backlog
    from kvreg.errors import UsageError
    from registry.store import open_store

    if unjudged and not published_in:
        raise UsageError("--unjudged is about what a store has", expected="--published-in REF")
    if kubernetes and published_in:
        raise UsageError("Kubernetes Jobs build; they do not rebuild", found="--published-in")
    labels = dict(item.partition("=")[::2] for item in runners)
    if not all(labels.values()):
        raise UsageError("a runner is named as SIZE=LABEL", found=", ".join(runners))
    with ExitStack() as stack:
        store = stack.enter_context(open_store(missing_from)) if missing_from else None
        jobs = make_matrix(
            find_checkout(), names, toolchain=toolchain, runners=labels, missing_from=store
        )
        published = stack.enter_context(open_store(published_in)) if published_in else None
        rebuilds = backlog(published, jobs, unjudged=unjudged) if published else ()
    if kubernetes:
        needed = {"--image": image, "--engine-image": engine_image, "--registry": registry}
        if absent := [option for option, value in needed.items() if not value]:
            raise UsageError(f"Kubernetes Jobs need {', '.join(absent)}")
        site = Site(
            str(image), str(engine_image), str(registry), cache_claim, registry_secret, namespace
        )
        click.echo(json.dumps(manifests(jobs, site), indent=2))
        return
    entries = rebuilds if published_in else jobs
    found = {"include": [entry.to_dict() for entry in entries]}
    if github is not None:
        github_output(github, {"matrix": json.dumps(found), "count": str(len(entries))})
    emit(
        found,
        as_json,
        lambda r: (
            "\n".join(
                f"{j['profile']}: {j['recipe']}, "
                f"{j.get('artifact') or j['toolchain'] or 'nothing is compiled'}, "
                f"{j['cores']} cores, {j['memory_gib']} GiB, at most {j['minutes']} min on "
                f"{j['runner']}"
                for j in r["include"]
            )
            or "nothing to build"
        ),
    )
