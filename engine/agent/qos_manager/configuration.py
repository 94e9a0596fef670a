"""The configuration file of the QoS manager: `QoSManagerConfiguration`, the arguments of strategies in Python.

koordlet has no such file: its strategies have flags. The NodeSLO sets their behaviour, here too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from koordpolicy.engine.documents import read_configuration
from koordpolicy.engine.documents.nodes import YamlNode, read_file, to_plain
from koordpolicy.engine.documents.validation import validate
from koordpolicy.engine.source import PolicyError, Problem, Source, Span, did_you_mean

KIND: Final = "QoSManagerConfiguration"
_CODE: Final = "configuration"
_FEATURES: Final = "features"


@dataclass(frozen=True, slots=True)
class StrategyArgs:
    """The arguments of a strategy as written, with their place."""

    values: Mapping[str, Any]
    place: Span


def load(path: Path, names: Collection[str]) -> Mapping[str, StrategyArgs]:
    """Return the arguments in a file by the name of the strategy, of which `names` are known.

    Raises:
        PolicyError: the file cannot be read or is no configuration, or it names an unknown strategy.
    """
    return read(read_file(path), names)


def read(source: Source, names: Collection[str]) -> Mapping[str, StrategyArgs]:
    """Return the arguments in a text; see `load`."""
    document = read_configuration(source, KIND)
    problems = list(_problems(document, names))
    if problems:
        raise PolicyError(problems)
    return {name: StrategyArgs(to_plain(node), node.place)
            for name, node in document.fields["strategies"].fields.items()}


def _problems(document: YamlNode, names: Collection[str]) -> Iterator[Problem]:
    invalid = list(validate(document, KIND))
    yield from invalid
    if invalid:
        return
    for name, node in document.fields["strategies"].fields.items():
        if name not in names:
            yield Problem(f"there is no strategy `{name}`", node.place, did_you_mean(name, names), code=_CODE)
        elif _FEATURES in node.fields:
            yield Problem(f"`{name}`: its features are chosen by feature gates", node.fields[_FEATURES].place,
                          "set them by `--feature-gates`", code=_CODE)
