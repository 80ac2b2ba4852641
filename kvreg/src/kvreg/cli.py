"""The ``kvreg`` command: a group that imports only the subcommand that is run."""

import importlib

import click

from kvreg import __version__

# name -> (module, one-line help). The help is here too so that `kvreg --help` imports nothing;
# a test holds it equal to the first line of the command's own help.
COMMANDS = {
    "profile": ("kvreg.commands.profile", "List, show, validate and digest profiles."),
    "pull": ("kvreg.commands.pull", "Fetch, verify and stage the runtime of a profile."),
    "facts": ("kvreg.commands.facts", "Print what is known of this host, as text or JSON."),
    "doctor": ("kvreg.commands.doctor", "Judge this host by the contract of a profile."),
    "drift": ("kvreg.commands.drift", "Replay published package lists against a profile."),
    "list": ("kvreg.commands.list", "List the runtimes that are staged here."),
    "verify": (
        "kvreg.commands.verify",
        "Rehash everything that is staged for a profile and name what differs.",
    ),
    "env": ("kvreg.commands.env", "Print what activates a staged runtime, as shell exports."),
    "run": ("kvreg.commands.run", "Run a command with a staged runtime."),
    "serve": (
        "kvreg.commands.serve",
        "Serve a model with upstream's OpenAI-compatible server.",
    ),
}


class LazyGroup(click.Group):
    """A group whose subcommands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kvreg")
def main() -> None:
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

    \b
    Exit codes: 0 fine; 1 contract violated or verification failed; 2 usage; 3 not found;
    4 network or registry; 5 storage.
    """
