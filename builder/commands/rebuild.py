"""`builder rebuild` and `builder compare`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.commands.options import cache_option, open_cache
from kvreg.console import emit, handled, json_option, note, progress

if TYPE_CHECKING:
    from builder.rebuild.making import Rebuilt
    from registry.privatekey import PrivateKey
    from registry.store import Store

_file = click.Path(path_type=Path, dir_okay=False)
EXIT_CODES = """\b
Exit codes: 0 identical, 6 not identical; else as everywhere: 1 refused or
verification failed, 2 usage, 3 not found, 4 network or registry, 5 storage."""


@click.command(epilog=EXIT_CODES)
@click.argument("reference", metavar="REF")
@click.option(
    "--jobs", "-j", type=click.IntRange(1), help="Compiler processes at once [default: chosen]."
)
@click.option("--offline", is_flag=True, help="Fetch nothing; name what the input cache lacks.")
@click.option(
    "--compile-cache/--no-compile-cache",
    default=False,
    show_default=True,
    help="Take objects of earlier builds. Quicker, says less, and is in the verdict.",
)
@click.option(
    "--despite-changes",
    is_flag=True,
    help="Rebuild although recipe, builder, locks or toolchain here are not those that were used.",
)
@click.option(
    "--verify-key",
    metavar="FILE",
    help="One of these public keys must have signed the artifact and its provenance.",
)
@click.option(
    "--attach/--no-attach",
    default=True,
    show_default=True,
    help="Attach the verdict to the artifact, whatever it is.",
)
@click.option("--key", "key_path", metavar="FILE", type=_file, help="Sign the verdict with it.")
@click.option(
    "--builder-id",
    metavar="URI",
    envvar="KVREG_BUILDER_ID",
    help="Who rebuilds, for the verdict. Default: $KVREG_BUILDER_ID, else nobody.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Empty folder for both wheels, record, log and verdict [default: dist/<profile>/rebuilt].",
)
@cache_option
@json_option
@handled
@click.pass_context
def rebuild(
    context: click.Context,
    reference: str,
    jobs: int | None,
    offline: bool,
    compile_cache: bool,
    despite_changes: bool,
    verify_key: str | None,
    attach: bool,
    key_path: Path | None,
    builder_id: str | None,
    out: Path | None,
    cache_root: Path | None,
    as_json: bool,
) -> None:
    """Build the published artifact REF again from its provenance, and compare the wheels.

    Profile and locks are those of the artifact, found in this checkout by their digests; where
    recipe, builder or toolchain here are not those that the provenance names, both digests are
    said and nothing is built. The build is cold and in a workspace of its own. Where the wheels
    differ, it says in which member and section, and why where that is known. The verdict is an
    in-toto statement that is attached to the artifact.

    \b
    Examples:
      builder rebuild oci-layout:dist/registry:t4-probe
      builder rebuild ghcr.io/you/runtimes@sha256:<hex> --verify-key team.pub --jobs 16
      builder rebuild oci-layout:dist/registry:t4x2-cu128-thin --no-attach --json
    """
    from builder.jobs import choose_jobs
    from builder.layout import find_checkout
    from builder.provenance import check_builder_id
    from builder.rebuild.making import How
    from builder.rebuild.making import rebuild as make
    from builder.rebuild.published import read_published
    from builder.rebuild.verdict import NOT_IDENTICAL
    from kvreg.errors import UsageError
    from kvreg.settings import required_keys
    from registry.commands.options import with_target
    from registry.commands.signing import ask_password
    from registry.privatekey import read_private_key
    from registry.store import open_store

    parsed, target = with_target(reference)
    check_builder_id(builder_id)
    if key_path and not attach:
        raise UsageError("--key signs what is attached", found="--no-attach")
    keys = required_keys(verify_key) if verify_key else ()
    key = read_private_key(key_path, ask_password) if key_path else None
    checkout = find_checkout()
    how = How(choose_jobs(jobs), compile_cache, despite_changes, offline)
    with open_store(parsed) as store:
        published = read_published(store, target, keys)
        if attach:
            store.prepare()  # what cannot be written to is found out now, not in an hour
        name = published.profile.name
        folder = _folder(out, checkout.build_folder(name) / "rebuilt")
        note(f"rebuilding {name} {published.descriptor.digest} of {store.location}")
        done = make(published, store, checkout, open_cache(cache_root), folder, how, say=note)
        result = deliver(done, store, folder, attach=attach, key=key, builder_id=builder_id)
    emit(result, as_json, lambda _: _text(done, result))
    context.exit(0 if done.identical else NOT_IDENTICAL)


def _folder(named: Path | None, default: Path) -> Path:
    """Where to put what comes out; only our own folder is ever emptied."""
    import shutil

    from kvreg.errors import UsageError

    if named is None:
        shutil.rmtree(default, ignore_errors=True)
    elif named.exists() and any(named.iterdir()):
        raise UsageError("the folder of --out is not empty", found=str(named))
    return named or default


def deliver(
    done: Rebuilt,
    store: Store,
    folder: Path,
    *,
    attach: bool = True,
    key: PrivateKey | None = None,
    builder_id: str | None = None,
) -> dict[str, Any]:
    """Write the verdict of a rebuild into `folder`, and attach it to the artifact.

    With a `key` it is also attached signed, as the provenance is. Returns where it is.
    """
    from builder.files import write_bytes
    from builder.rebuild.verdict import FILENAME, build_verdict
    from registry.attach import attach as attach_to
    from registry.describe import ANNOTATION_VERDICT, MEDIA_TYPE_VERDICT
    from registry.signing import attest

    statement = build_verdict(done, builder_id)
    write_bytes(folder / FILENAME, statement)
    subject = done.published.descriptor
    referrers = []
    if attach:
        verdict = {ANNOTATION_VERDICT: done.comparison.verdict}
        made = attach_to(store, subject, MEDIA_TYPE_VERDICT, statement, FILENAME, verdict)
        referrers.append(made.digest)
        if key is not None:
            referrers.append(attest(store, subject.digest, statement, key).digest)
    return {
        "digest": subject.digest,
        "verdict": done.comparison.verdict,
        "published": done.comparison.a.sha256,
        "rebuilt": done.comparison.b.sha256,
        "despite": [change.to_dict() for change in done.changes],
        "comparison": done.comparison.to_dict(),
        "folder": str(folder),
        "statement": str(folder / FILENAME),
        "referrers": referrers,
        "signed_by": key.public.fingerprint if key else None,
    }


def _text(done: Rebuilt, result: dict[str, Any]) -> str:
    lines = [done.comparison.text()]
    for change in done.changes:
        lines.append(f"  despite another {change.what}: {change.published}, here {change.here}")
    lines.append(f"  a is the published wheel, b the rebuilt one; both in {result['folder']}")
    lines.append(
        f"  verdict attached as {result['referrers'][0]}"
        if result["referrers"]
        else f"  verdict in {result['statement']}, not attached"
    )
    return "\n".join(lines)


@click.command(epilog=EXIT_CODES)
@click.argument("a", type=_file)
@click.argument("b", type=_file)
@json_option
@handled
@click.pass_context
def compare(context: click.Context, a: Path, b: Path, as_json: bool) -> None:
    """Compare the wheels A and B member by member.

    Shared objects section by section, device code entry by entry, texts by line; why they differ
    where a reason is known that accounts for it: a time, a path, a process id in nvcc's names, the
    order. Nothing of them is executed.

    \b
    Examples:
      builder compare dist/t4-probe/*.whl other/kvreg_probe-*.whl
      builder compare A.whl B.whl --json | jq '.unexplained'
    """
    from builder.comparison import compare_wheels
    from builder.rebuild.verdict import NOT_IDENTICAL

    with progress(None, "comparing") as bar:
        found = compare_wheels(a, b, bar.update)
    emit(found, as_json, lambda comparison: comparison.text())
    context.exit(0 if found.verdict == "identical" else NOT_IDENTICAL)
