"""Print a script that completes commands, options and their values in a shell: bash, zsh or fish.

The script is made of the options that this release has. Store it where the shell looks for completions, and again after
an update. `kubectl koord-policy` is completed by `kubectl_complete-koord_policy`, which is installed beside it.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from koordpolicy.engine.escaping import one_line

from . import schema
from .exits import Exit

if TYPE_CHECKING:
    from . import Builtins

EXAMPLES = """\
examples:
  koord-policy completion bash > ~/.local/share/bash-completion/completions/koord-policy
  koord-policy completion zsh > ~/.zfunc/_koord-policy
  koord-policy completion fish > ~/.config/fish/completions/koord-policy.fish

exit codes: 0 ok, 2 usage
"""

SHELLS: Final = ("bash", "zsh", "fish")
_BEGIN_WITH_FILES: Final = frozenset(("AXIS",))
"""Placeholders of values that begin with names of files."""
_SCHEMAS: Final[Mapping[str, Callable[[], Collection[str]]]] = {
    "KIND": lambda: schema.kinds("v1alpha2"), "COMMAND": lambda: (*schema.outputs(), schema.FAILURE)}
"""Words of placeholders that are no choices of argparse, as it would list them all in the usage."""
_ONLY_LISTED: Final = 4
"""cobra's ShellCompDirectiveNoFileComp, which kubectl reads: nothing but the listed values fits."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")


def run(options: argparse.Namespace, builtins: Builtins) -> int:  # noqa: ARG001 - every command is given them
    """Run the command; see the module."""
    sys.stdout.write(script(options.shell))
    return Exit.OK


def script(shell: str) -> str:
    """Return the completion script for one of `SHELLS`."""
    import shtab

    from . import COMMANDS, DIRECTORIES, FILES, command_line  # the module that imports this one when it runs

    parser, children = command_line("koord-policy", COMMANDS)
    for each in (parser, *children.values()):
        each.description = COMMANDS.get(each.prog.rpartition(" ")[2], "")  # of one line, as menus show it
        for action in each.options_and_arguments():
            if action.choices is None:
                action.choices = _words(action) or None
            if action.metavar in FILES | _BEGIN_WITH_FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            elif action.metavar in DIRECTORIES:
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    return _without_preamble(str(shtab.complete(parser, shell)))


def _without_preamble(text: str) -> str:
    """Leave out the comments at the beginning, which say where to store the file: other places than our help does.

    The first line of a script for zsh is no such comment.
    """
    lines = text.splitlines(keepends=True)
    first = lines[:1] if lines and lines[0].startswith("#compdef") else []
    rest = itertools.dropwhile(lambda line: line.startswith("#") or not line.strip(), lines[len(first):])
    return "".join((*first, *rest))


@dataclass(frozen=True, slots=True)
class Completions:
    """Words that may stand at the end of a command line, each with its description or an empty string.

    `files` is true if names of files may stand there.
    """

    words: tuple[tuple[str, str], ...] = ()
    files: bool = False


def candidates(words: Sequence[str]) -> Completions:
    """Return the words that may stand in place of the last of `words`, which may be empty or the beginning of a
    word.
    """
    from . import COMMANDS, command_line

    *before, last = words
    named = next((each for each in before if not each.startswith("-")), None)
    if named is None or named not in COMMANDS:
        parser, _ = command_line("koord-policy", ())
        known = _options(parser, (), last) if last.startswith("-") else COMMANDS.items() if named is None else ()
        return Completions(tuple(each for each in known if each[0].startswith(last)))
    _, children = command_line("koord-policy", (named,))
    parser = children[named]
    actions = {name: each for each in parser.options_and_arguments() for name in each.option_strings}
    option, equals, value = last.partition("=")
    if equals and option in actions:
        found = _values(actions[option], value)
        return Completions(tuple((f"{option}={word}", text) for word, text in found.words), found.files)
    following = before[before.index(named) + 1:]
    if following and (action := actions.get(following[-1])) is not None and action.nargs != 0:
        return _values(action, last)
    if last.startswith("-"):
        return Completions(tuple(_options(parser, following, last)))
    place = 0
    for number, word in enumerate(following):
        valued = actions.get(following[number - 1]) if number else None
        place += not word.startswith("-") and (valued is None or valued.nargs == 0)
    arguments = [each for each in parser.options_and_arguments() if not each.option_strings]
    if arguments and (place < len(arguments) or arguments[-1].nargs in ("+", "*")):
        return _values(arguments[min(place, len(arguments) - 1)], last)
    return Completions()


def _options(parser: Any, given: Collection[str], beginning: str) -> Iterator[tuple[str, str]]:
    for action in parser.options_and_arguments():
        once = not isinstance(action, argparse._AppendAction)  # noqa: SLF001 - argparse has no name for it
        if once and any(each in given for each in action.option_strings):
            continue
        text = one_line(str(action.help or "")).replace("%%", "%")
        yield from ((each, text) for each in action.option_strings if each.startswith("--")
                    and each.startswith(beginning))


def _words(action: argparse.Action) -> Collection[Any]:
    if action.choices is not None:  # as those of the commands themselves
        return tuple(action.choices)
    words = _SCHEMAS.get(action.metavar) if isinstance(action.metavar, str) else None
    return () if words is None else words()


def _values(action: argparse.Action, beginning: str) -> Completions:
    from . import DIRECTORIES, FILES

    words = tuple((str(each), "") for each in _words(action) if str(each).startswith(beginning))
    return Completions(words, action.metavar in FILES | _BEGIN_WITH_FILES | DIRECTORIES)


def kubectl_lines(words: Sequence[str]) -> str:
    """Return the candidates as kubectl reads them from `kubectl_complete-PLUGIN`: a word a line, and a directive."""
    found = candidates(words or ("",))
    lines = [f"{word}\t{text}" if text else word for word, text in found.words]
    return "\n".join((*lines, f":{0 if found.files else _ONLY_LISTED}", ""))
