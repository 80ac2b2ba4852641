"""The ``kvreg`` command: a group that imports only the subcommand that is run."""

import os

import click

from kvreg import __version__
from kvreg.lazy import Entry, LazyGroup
from kvreg.program import run_group

COMMANDS = {
    "profile": Entry("kvreg.commands.profile", "List, show, validate and digest profiles."),
    "pull": Entry("kvreg.commands.pull", "Fetch, verify and stage the runtime of a profile."),
    "resolve": Entry(
        "kvreg.commands.resolve",
        "Say which artifact a profile means now, where it is, and what was tried.",
    ),
    "facts": Entry("kvreg.commands.facts", "Print what is known of this host, as text or JSON."),
    "doctor": Entry("kvreg.commands.doctor", "Judge this host by the contract of a profile."),
    "drift": Entry("kvreg.commands.drift", "Replay published package lists against a profile."),
    "list": Entry("kvreg.commands.list", "List the runtimes that are staged here."),
    "verify": Entry(
        "kvreg.commands.verify",
        "Rehash everything that is staged for a profile and name what differs.",
    ),
    "show": Entry(
        "kvreg.commands.show",
        "Show a staged runtime, or the artifact that would be pulled.",
    ),
    "which": Entry(
        "kvreg.commands.which",
        "Say where a module, script or library is in a staged runtime, and how to use it.",
    ),
    "env": Entry("kvreg.commands.env", "Print what activates a staged runtime, as shell exports."),
    "run": Entry("kvreg.commands.run", "Run a command with a staged runtime."),
    "serve": Entry(
        "kvreg.commands.serve", "Serve a model with upstream's OpenAI-compatible server."
    ),
    "remove": Entry("kvreg.commands.remove", "Remove staged runtimes, and say what that freed."),
    "gc": Entry(
        "kvreg.commands.gc",
        "Find what nothing needs any more, and delete it with --delete.",
    ),
    "completion": Entry(
        "kvreg.commands.completion",
        "Print what makes a shell complete kvreg's commands, options and profiles.",
    ),
    "capacity": Entry(
        "kvreg.commands.capacity",
        "Say what a model's weights and KV cache take at each TP degree, and what fits.",
    ),
    "advise": Entry(
        "kvreg.commands.advise",
        "Say which TP degree measured evidence speaks for, and why: capacity or performance.",
    ),
    "sweep": Entry("kvreg.commands.sweep", "Tensor-parallel sweeps: plan, run, analyse, report."),
    "nccl": Entry(
        "kvreg.commands.nccl", "Measure all-reduce between GPUs and fit latency and bandwidth."
    ),
}


@click.group(
    cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="kvreg")
@click.option(
    "--facts",
    metavar="FILE",
    envvar="KVREG_FACTS",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    help="Let the host of this file (kvreg facts --output) stand for this one, to replay what a"
    " command says there. What would run or measure something refuses it.",
)
def main(facts: str | None) -> None:
    """Verified, side-by-side vLLM runtimes for managed GPU notebooks.

    A profile names a host contract and one pinned runtime. kvreg resolves the runtime's artifact
    by the profile's digest, verifies every byte, stages it in a directory of its own and runs
    commands with it. The host's own packages are never changed.

    \b
    Examples:
      kvreg profile list
      kvreg pull t4x2-cu128 --registry oci-layout:./dist/registry
      kvreg verify t4x2-cu128
      kvreg run t4x2-cu128 -- python -c "import vllm"
      kvreg --facts their-host.json doctor t4x2-cu128

    \b
    Exit codes: 0 fine; 1 contract violated or verification failed; 2 usage; 3 not found;
    4 network or registry; 5 storage.
    """
    if facts:
        os.environ["KVREG_FACTS"] = facts


def run() -> None:
    """The program `kvreg`."""
    run_group(main)
