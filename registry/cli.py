"""The command `registry`: artifacts in layouts and registries, from publishing to clearing away."""

import click

from kvreg.lazy import Entry, LazyGroup
from kvreg.program import run_group
from registry import __version__
from registry.commands.options import EXIT_CODES

COMMANDS = {
    "push": Entry(
        "registry.commands.publishing",
        "Publish wheels as the runtime of a profile. `builder publish` does that and more.",
        "push_command",
    ),
    "copy": Entry(
        "registry.commands.transfer",
        "Copy the artifact SRC with its referrers to DST.",
        "copy_command",
    ),
    "ls": Entry(
        "registry.commands.contents",
        "List the artifacts of STORE with their tags, sizes and attestations.",
        "ls_command",
    ),
    "show": Entry(
        "registry.commands.contents",
        "Show an artifact: profile, files, sizes, host contract, annotations and attestations.",
        "show_command",
    ),
    "resolve": Entry(
        "registry.commands.contents",
        "Print the digest that REF names, after checking the manifest's bytes.",
        "resolve_command",
    ),
    "tags": Entry(
        "registry.commands.contents",
        "List the tags of a store, one a line.",
        "tags_command",
    ),
    "referrers": Entry(
        "registry.commands.contents",
        "List what is attached to an artifact: SBOM, provenance and others.",
        "referrers_command",
    ),
    "attach": Entry(
        "registry.commands.attaching",
        "Attach a file to the artifact REF as a referrer.",
        "attach_command",
    ),
    "verify": Entry(
        "registry.commands.verification",
        "Read and hash every manifest and blob of REF again, those of its referrers included.",
        "verify_command",
    ),
    "tag": Entry(
        "registry.commands.naming",
        "Let NEWTAG name what REF names, in the same store.",
        "tag_command",
    ),
    "delete": Entry(
        "registry.commands.naming",
        "Delete a tag, or the artifact of a digest with everything attached to it.",
        "delete_command",
    ),
    "gc": Entry(
        "registry.commands.garbage",
        "Find what no tag of STORE reaches any more, and delete it with --delete.",
        "gc_command",
    ),
    "pack": Entry(
        "registry.commands.packing",
        "Write REF with its attestations to the new folder OUT, to be uploaded as a dataset.",
        "pack_command",
    ),
    "unpack": Entry(
        "registry.commands.packing",
        "Check every file of a packed FOLDER, and copy its artifact with its tags into STORE.",
        "unpack_command",
    ),
    "index": Entry(
        "registry.commands.simple",
        "Write a package index over the wheels of all tagged runtimes, for plain pip and uv.",
        "index_command",
    ),
    "keygen": Entry(
        "registry.commands.signing",
        "Make a key pair in cosign's own form (ECDSA P-256).",
        "keygen_command",
    ),
    "sign": Entry(
        "registry.commands.signing",
        "Sign the artifact REF as cosign does, with a key pair and without a transparency log.",
        "sign_command",
    ),
}

_REFERENCE_HELP = """\b
A reference is
  oci-layout:PATH[:TAG]                       an OCI image layout directory
  [http://|https://]HOST[:PORT]/REPO[:TAG]    a repository of a registry
and may end in @sha256:<hex> instead of a tag."""

_CREDENTIALS_HELP = """\b
Credentials come from KVREG_REGISTRY_USERNAME and KVREG_REGISTRY_PASSWORD (for
KVREG_REGISTRY_HOST alone, when that is set) or from what `docker login` stored."""


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    epilog=f"""\b
Examples:
  registry ls oci-layout:dist/registry
  registry show oci-layout:dist/registry:t4-probe
  registry copy oci-layout:dist/t4-probe:t4-probe ghcr.io/you/runtimes
  registry verify ghcr.io/you/runtimes:t4-probe

{_REFERENCE_HELP}

{_CREDENTIALS_HELP}

{EXIT_CODES}""",
)
@click.version_option(__version__, prog_name="registry")
def main() -> None:
    """Work with runtime artifacts in OCI layouts and registries."""


def run() -> None:
    """The program `registry`."""
    run_group(main)
