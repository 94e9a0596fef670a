"""The command line: one file per command, imported only when that command runs."""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Never

from koordpolicy import __version__
from koordpolicy.engine.escaping import visible

from .exits import Exit

if TYPE_CHECKING:
    from koordpolicy.engine.framework.registry import Plugin

COMMANDS: Final = {
    "new": "create a policy with its test, or a distribution with a Python plugin",
    "lint": "check policy files: YAML, schema, types and cost of every expression",
    "fmt": "give policy files the standard layout: YAML and the expressions in it",
    "lsp": "serve editors by the Language Server Protocol",
    "test": "run the unit tests of policies, with coverage and mutants",
    "simulate": "replay a trace of pods over a cluster under a set of policies",
    "replay": "replay a recording with its arrivals and departures, waiting pods and a descheduler",
    "sweep": "run many experiments at once, over a trace or a snapshot, and compare them",
    "diff": "report what another set of policies would change in a cluster",
    "audit": "find policies and rules that have no effect in a cluster, or refuse everything",
    "console": "show a cluster and its decisions in a browser, and try policies there",
    "explain": "explain why a pod would run on a node, and why not on the others",
    "plugins": "list the active plugins, with their origin and extension points",
    "dump": "write a dump of a live cluster, for the other commands",
    "eval": "evaluate one CEL expression",
    "schema": "print the JSON Schema of a document kind",
    "crd": "print the CustomResourceDefinitions that store policies in a cluster",
    "scheduler": "schedule the pods of a cluster, also a live one, or serve kube-scheduler as an extender",
    "descheduler": "evict pods of a live cluster in cycles, or report what one cycle would evict",
    "agent": "run the node agent: measure this node, and run its QoS strategies",
    "qos": "replay recorded metrics through the QoS plugins",
    "manager": "make NodeSLOs, batch and mid resources of a live cluster's nodes, and serve its webhooks",
    "status": "report the active policies of running servers, since when, and problems of a newer version",
    "top": "show a cluster and running servers in the terminal, live",
    "hash": "print the hash of a directory of policies",
    "push": "store policies as a signed bundle in an OCI registry",
    "pull": "write the policies of a bundle in an OCI registry to a directory",
    "reload": "wait until a version of policies is active on running servers",
    "promote": "activate the shadow of a server, if its decisions agree",
    "rollback": "activate an earlier generation again",
    "completion": "print a script that completes command lines in a shell",
}

_POLICY_PATHS: Final = frozenset({"path", "paths", "old"})
"""Positional arguments that name policies."""
_EPILOG = """\
exit codes: 0 ok, 1 unexpected, 2 usage, 3 policies invalid, 4 tests failed, 5 decision not possible, 6 over budget

examples:
  koord-policy new scheduler keep-off-busy-nodes --out policies
  koord-policy lint policies/
  koord-policy explain default/web-1 --cluster cluster.yaml --policies policies/
  koord-policy eval 'allocatable.cpu - requested.cpu' --cluster cluster.yaml --node node-a
  koord-policy COMMAND --help
"""

FILES: Final = frozenset(("FILE", "PATH", "OLD", "NEW", "SOURCE"))
"""Placeholders of options and arguments whose values are names of files, or may be."""
DIRECTORIES: Final = frozenset(("DIR",))
"""Placeholders of names of directories."""

_BROKEN_PIPE: Final = 128 + 13
_INTERRUPTED: Final = 128 + 2

Builtins = Callable[[], "Iterable[Plugin]"]
"""Returns the Python plugins that are built in; passed in because the engine never imports them."""


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        # argparse ignores that commands are indented twice, and would break the line after the longest of them.
        self._action_max_length = max(map(len, COMMANDS)) + 4


class _Parser(argparse.ArgumentParser):
    """Rejects unknown words with a suggestion, in two lines."""

    as_json = False
    """True if an error is printed as JSON too, on standard output."""
    _dashed = ""
    """The first word that begins with a dash and is no option: an expression such as `-1`, perhaps."""

    def error(self, message: str) -> Never:
        """End with one line of usage and what is wrong with a command line."""
        if self._dashed and message.startswith("the following arguments are required"):
            message += f" (`{self._dashed}` begins as options do: write it after `--`)"
        if self.as_json:
            from .failures import usage  # only where something is wrong
            from .terminal import write_json

            write_json(usage(message))
        self.exit(Exit.USAGE, f"usage: {self._short_usage()} (`{self.prog} --help` explains the options)\n"
                              f"{self.prog}: error: {message}\n")

    def _short_usage(self) -> str:
        """Return the usage with required options and arguments only."""
        required = [each for each in self._get_optional_actions() if each.required]
        options = [f"{each.option_strings[0]} {each.metavar or each.dest.upper()}" for each in required]
        arguments = [self._placeholder(each) for each in self._get_positional_actions()]
        return " ".join((self.prog, "[OPTIONS]", *options, *arguments))

    @staticmethod
    def _placeholder(argument: argparse.Action) -> str:
        name = str(argument.metavar or argument.dest.upper())
        many = f"{name}..." if argument.nargs in ("+", "*") else name
        return f"[{many}]" if argument.nargs in ("?", "*") else many

    def options_and_arguments(self) -> tuple[argparse.Action, ...]:
        """Return all options and arguments, in the order of the help."""
        return tuple(self._actions)

    def flag_before(self, word: str, words: Sequence[str]) -> str:
        """Return the option without a value after which a word stands first, or an empty string."""
        place = words.index(word) if word in words else 0
        before = words[place - 1] if place else ""
        action = self._option_string_actions.get(before)
        return before if action is not None and action.nargs == 0 else ""

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        # An empty path would be that of the working directory: a variable that is not set may stand there.
        if not arg_string and action.metavar in FILES | DIRECTORIES:
            raise argparse.ArgumentError(action, "it is empty: a variable that is not set?")
        return super()._get_value(action, arg_string)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            from koordpolicy.engine.source import did_you_mean  # only where something is wrong
            from koordpolicy.engine.texts import quoted_list

            choices = tuple(action.choices)
            hint = did_you_mean(str(value), map(str, choices)) or f"write one of {quoted_list(choices)}"
            raise argparse.ArgumentError(action, f"there is no `{value}`: {hint}")

    def _print_message(self, message: str, file: Any = None) -> None:
        super()._print_message(visible(message), file)

    def refuse(self, kind: str, word: str, known: Collection[str] = ()) -> Never:
        """End with the usage, and with the known word (default: option) that is most similar to `word`."""
        from koordpolicy.engine.source import did_you_mean  # only where something is wrong

        known = known or self._option_string_actions
        hint = did_you_mean(word.partition("=")[0], known)
        positional = {each.dest for each in self._get_positional_actions()}
        if f"--{word}" in self._option_string_actions:
            hint = f"did you mean `--{word}`?"
        if word.partition("=")[0] == "--policies" and not positional.isdisjoint(_POLICY_PATHS):
            hint = "policies are named without an option"
        self.error(f"there is no {kind} `{word}`: {hint or f'`{self.prog} --help` lists them'}")

    def look_at(self, words: Iterable[str]) -> None:
        """Reject unknown options first: they may be the reason why others are missing."""
        for word in itertools.takewhile(lambda each: each != "--", words):
            if not self._dashed and word[:1] == "-" and word[:2] not in {"-", "--", *self._option_string_actions}:
                self._dashed = word
            # A word with a blank is an argument, as in argparse.
            if word.startswith("--") and " " not in word and word.partition("=")[0] not in self._option_string_actions:
                self.refuse("option", word)


def command_line(prog: str, loaded: Collection[str]) -> tuple[_Parser, dict[str, _Parser]]:
    """Return the parser of command lines, and those of the commands that are `loaded`, with their options.

    `prog` is the name under which the program was started.
    """
    parser = _Parser(
        prog=prog, description="Policy as config for Kubernetes scheduling.", epilog=_EPILOG,
        formatter_class=_Help, allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"koord-policy {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    children: dict[str, _Parser] = {}
    for name, summary in COMMANDS.items():
        # Only the command that runs is imported: `--help` must not wait for numpy.
        if name in loaded:
            module = importlib.import_module(f".{name}", __name__)
            child = commands.add_parser(
                name, help=summary, description=module.__doc__, epilog=module.EXAMPLES, allow_abbrev=False,
                formatter_class=_Help,
            )
            module.add_arguments(child)
            child.set_defaults(run=module.run)
            children[name] = child
        else:
            commands.add_parser(name, help=summary, add_help=False)
    return parser, children


def main(argv: Sequence[str] | None = None, builtins: Builtins = tuple, prog: str = "koord-policy") -> int:
    """Run a command and return its exit code (see `Exit`)."""
    # Python has None for a stream that is closed when it starts (`>&-`).
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - for all of the process, without `pathlib`
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - likewise
    try:
        try:
            return _run(argv, builtins, prog)
        finally:  # here, as Python would report a broken pipe while it ends
            sys.stdout.flush()
    except KeyboardInterrupt:  # also while modules are imported, which takes a second on a slow machine
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has ended. Python would report the error again while flushing at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # The exit code of a program that SIGPIPE ends: the unread output may have reported a failure.
        return _BROKEN_PIPE


def _run(argv: Sequence[str] | None, builtins: Builtins, prog: str) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    named = next((word for word in arguments if not word.startswith("-")), None)
    parser, children = command_line(prog, () if named is None else (named,))
    if not arguments:  # on standard error, so that no script takes the help for a result
        parser.print_help(sys.stderr)
        parser.exit(Exit.USAGE, f"\n{prog}: error: which command? `{prog} COMMAND --help` describes one\n")
    if named is not None and named not in COMMANDS and arguments[0] == named:
        parser.refuse("command", named, COMMANDS)
    chosen = children.get(named or "", parser)
    if chosen is not parser:
        chosen.as_json = _as_json(chosen, arguments)
    chosen.look_at(itertools.takewhile(lambda word: word != named, arguments) if chosen is parser else arguments)
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        if unknown[0].startswith("-"):
            chosen.refuse("option", unknown[0])
        flag = chosen.flag_before(unknown[0], arguments)
        chosen.error(f"`{flag}` takes no value: `{unknown[0]}` is one argument too many" if flag else
                     f"`{unknown[0]}` is one argument too many")
    return _guarded(lambda: options.run(options, builtins), _named_by(options, chosen), as_json=chosen.as_json)


def _as_json(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> bool:
    """Return whether a command that can print JSON is asked to."""
    from .failures import asks_for_json

    able = any("--output" in each.option_strings and "json" in (each.choices or ()) for each in parser._actions)  # noqa: SLF001 - argparse has no public list of options
    return able and asks_for_json(arguments)


def _named_by(options: argparse.Namespace, parser: argparse.ArgumentParser) -> dict[str, str]:
    """Return the texts of options and arguments, any of which may name a file, each with its option (or "")."""
    flags = {each.dest: max(each.option_strings, key=len, default="") for each in parser._actions}  # noqa: SLF001 - argparse has no public list of options
    given = ((flags.get(name, ""), value) for name, value in vars(options).items())
    texts = ((flag, each) for flag, value in given for each in (value if isinstance(value, list | tuple) else (value,)))
    return {str(each): flag for flag, each in texts if isinstance(each, str | os.PathLike)}


def _guarded(run: Callable[[], int], named: Mapping[str, str], *, as_json: bool = False) -> int:
    from .logs import log_visibly
    from .terminal import reports_begun, write_json

    log_visibly()
    before = reports_begun()
    try:
        return int(run())
    except BrokenPipeError:
        raise
    except Exception as error:
        if as_json and reports_begun() == before:  # a program reads one object, and not what comes after it
            from .failures import failure

            write_json(failure(error))
        return _reported(error, named)


def _reported(error: Exception, named: Mapping[str, str]) -> int:
    """Print an error of a command for people, and return its exit code; raise what is unexpected.

    `named` are the options of files, see `_named_by`.
    """
    from koordpolicy.engine.source import PolicyError

    from .exits import Stop

    if isinstance(error, Stop):
        print(visible(f"koord-policy: {error}"), file=sys.stderr)  # noqa: T201 - an error, for people
        return error.exit
    if isinstance(error, PolicyError):
        print(visible(str(error)), file=sys.stderr)  # noqa: T201 - an error, for people
        return Exit.INVALID
    if isinstance(error, OSError):
        flag = named.get(str(error.filename), "")
        file = f"`{flag} {error.filename}`" if flag else error.filename
        where = f"{file}: " if file else ""
        print(visible(f"koord-policy: {where}{error.strerror or error}"), file=sys.stderr)  # noqa: T201 - an error, for people
        # An unusable file that an option names is a usage error.
        return Exit.USAGE if str(error.filename) in named else Exit.UNEXPECTED
    raise error
