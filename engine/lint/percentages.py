"""Fractions of 1 where percent are expected: in params, in settings of QoSPlugins and in component configurations.

`0.65` is then 0.65 %, and `1` is 1 %. A fraction below 1 is reported everywhere, 1 only where 1 % has hardly any use:
as the level of usage up to which nodes are good, or as a setting that limits something to a hundredth.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from koordpolicy.engine.cel.check.checked_ast import reads_of
from koordpolicy.engine.documents import YamlNode
from koordpolicy.engine.source import Span

from . import slo
from .subject import LintSubject, Placed, Violation, Whole
from .watermarks import suppression, watermarks

_DEVIATION: Final = "useDeviationThresholds"
_PROFILES: Final = "profiles"


@dataclass(frozen=True, slots=True)
class _Percentages:
    """The percentages of a plugin's arguments: paths of fields, of which `*` is any name or index.

    `upper` are levels for which 1 % is hardly useful; for `lower` ones 1 % may be intended.
    """

    upper: tuple[str, ...] = ()
    lower: tuple[str, ...] = ()


_SHAPE: Final = "scoringStrategy.requestedToCapacityRatio.shape"
_LOAD: Final = ("highThresholds.*", "prodHighThresholds.*")
_ROOM: Final = ("lowThresholds.*", "prodLowThresholds.*")
_ARGS: Final[Mapping[str, _Percentages]] = {
    "LoadAwareScheduling": _Percentages((
        "usageThresholds.*", "prodUsageThresholds.*", "aggregated.usageThresholds.*", "estimatedScalingFactors.*",
    )),
    "LowNodeLoad": _Percentages(
        (*_LOAD, *(f"nodePools.*.{each}" for each in _LOAD)),
        (*_ROOM, *(f"nodePools.*.{each}" for each in _ROOM)),
    ),
    "LowNodeUtilization": _Percentages(("targetThresholds.*",), ("thresholds.*",)),
    "HighNodeUtilization": _Percentages((), ("thresholds.*",)),
}
_SLO_FIELDS: Final = frozenset((
    "cpuSuppressThresholdPercent", "cpuEvictThresholdPercent", "cpuEvictBEUsageThresholdPercent",
    "memoryEvictThresholdPercent", "cpuAllocatableEvictThresholdPercent", "memoryAllocatableEvictThresholdPercent",
    "cpuReclaimThresholdPercent", "memoryReclaimThresholdPercent", "batchCPUThresholdPercent",
    "batchMemoryThresholdPercent", "midCPUThresholdPercent", "midMemoryThresholdPercent", "cpuBurstPercent",
    "sharePoolThresholdPercent", "catRangeEndPercent", "mbaPercent",
))
"""The settings of slo-controller-config of which 1 % has hardly any use."""
_SETTINGS: Final = frozenset(("cpuBurstPercent", "sharePoolThresholdPercent", "catRangeEndPercent", "mbaPercent"))
_LEVELS: Final = frozenset(("filter", "source", "destination", "until", "threshold"))
_LOW: Final = frozenset((
    "idle", "min", "minimum", "least", "low", "lower", "lowest", "empty", "free", "unused", "spare", "reserve",
    "reserved", "margin", "tolerance", "band", "gap", "step", "delta", "hysteresis", "distance", "difference",
))
"""Words in the names of params of which 1 % may be meant."""
_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def fractions_for_percent(whole: Whole) -> Iterator[Violation]:
    """Find fractions where percent are expected."""
    for subject in whole.subjects:
        if subject.compiled is not None:
            yield from _of_document(subject)
    for node in whole.configurations:
        yield from _of_plugins(node)
        for key, settings in slo.values(node):
            yield from _of_settings(key, settings)


# -- documents -----------------------------------------------------------------------------------------------------


def _of_document(subject: LintSubject) -> Iterator[Violation]:
    reported: set[str] = set()
    for placed in subject.placed:
        for name, percent in _levels(subject, placed):
            if name not in reported:
                reported.add(name)
                is_own = name in subject.spec.params
                yield _violation(
                    f"the param `{name}`", percent, subject.place("spec", "params", name) if is_own else placed.span(),
                )
        if placed.role == "setting" and str(placed.item) in _SETTINGS:
            constant = subject.as_written.of(placed.checked).constant(placed.checked.root)
            if constant is not None and constant[0] == 1 and not isinstance(constant[0], bool):
                yield _violation(f"`{placed.item}`", Fraction(1), placed.span())


def _levels(subject: LintSubject, placed: Placed) -> Iterator[tuple[str, Fraction]]:
    """Yield the params that are levels of usage of at most 1 %: as they are written, fractions of 1."""
    analysis = subject.as_written.of(placed.checked)
    if placed.role in _LEVELS:
        found = [(mark.checked, mark.node, mark.percent) for mark in watermarks(analysis) if mark.percent == 1]
    elif placed.role == "target" and (limit := suppression(analysis)) is not None and 0 < limit[1] <= 1:
        found = [(placed.checked, limit[2], limit[1])]
    else:
        return
    for checked, node, percent in found:
        names = {path[1] for path in reads_of(checked, node) if len(path) == 2 and path[0] == "params"}
        for name in names:
            if _number(subject.params.get(name)) == percent and (percent < 1 or not _is_low(name)):
                yield name, percent


def _is_low(name: str) -> bool:
    return not _LOW.isdisjoint(word.lower() for word in _WORD.findall(name))


# -- component configurations --------------------------------------------------------------------------------------


def _of_plugins(node: YamlNode) -> Iterator[Violation]:
    profiles = node.at(_PROFILES)
    for profile in profiles.items if profiles is not None else ():
        entries = profile.at("pluginConfig")
        for entry in entries.items if entries is not None else ():
            name, args = entry.at("name"), entry.at("args")
            if name is not None and args is not None:
                yield from _of_args(name.text, args)


def _of_args(plugin: str, args: YamlNode) -> Iterator[Violation]:
    fields = _ARGS.get(plugin, _Percentages())
    upper = list(_nodes_at(args, fields.upper))
    lower = list(_nodes_at(args, fields.lower))
    found = [(path, node, value) for path, node in (*upper, *lower) if (value := _number(node.scalar)) is not None]
    deviation = _nodes_at(args, (_DEVIATION, f"nodePools.*.{_DEVIATION}"))
    deviates = {path.removesuffix(_DEVIATION) for path, node in deviation if node.scalar is True}
    are_fractions = any(0 < value < 1 for _, _, value in found)
    highest = {path for path, _ in upper}
    for path, node, value in found:
        pool = path[:path.find(".", len("nodePools."))] + "." if path.startswith("nodePools.") else ""
        # Distances from the average may be as small as that.
        if pool not in deviates and (0 < value < 1 or (value == 1 and (path in highest or are_fractions))):
            yield _violation(f"`{path}` of `{plugin}`", value, node.place)
    yield from _of_shape(plugin, args)


def _of_shape(plugin: str, args: YamlNode) -> Iterator[Violation]:
    """Find a shape of scores by utilization that ends at 1."""
    points = list(_nodes_at(args, (f"{_SHAPE}.*.utilization",)))
    values = [_number(node.scalar) for _, node in points]
    if len(points) > 1 and values[-1] == 1 and all(each is not None and 0 <= each <= 1 for each in values):
        path, node = points[-1]
        yield _violation(f"`{path}` of `{plugin}`", Fraction(1), node.place)


def _of_settings(key: str, settings: YamlNode) -> Iterator[Violation]:
    pending = [settings]
    while pending:
        node = pending.pop()
        pending.extend(node.items)
        for name, value in node.fields.items():
            pending.append(value)
            if name in _SLO_FIELDS and _number(value.scalar) == 1:
                yield _violation(f"`{name}` of `{key}`", Fraction(1), value.place)


def _nodes_at(node: YamlNode, paths: Iterable[str]) -> Iterator[tuple[str, YamlNode]]:
    """Yield the nodes at paths, each with its own path."""
    for path in paths:
        found = [("", node)]
        for step in path.split("."):
            found = [
                (f"{before}.{name}" if before else name, below) for before, each in found
                for name, below in _children(each).items() if step in ("*", name)
            ]
        yield from found


def _children(node: YamlNode) -> Mapping[str, YamlNode]:
    return node.fields or {str(number): each for number, each in enumerate(node.items)}


def _number(value: object) -> Fraction | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value - value != 0:
        return None
    return Fraction(str(value))


def _violation(who: str, value: Fraction, span: Span) -> Violation:
    shown = f"{float(value):g}"
    return Violation(
        f"{who} is {shown}, and percent are expected: that is {shown} of 100", span,
        f"did you mean {float(value * 100):g}?",
    )
