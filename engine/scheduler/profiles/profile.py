"""A profile: the plugins that decide, in order, with weights and arguments.

A valid document is active in every profile unless it names profiles of its own or the profile disables it; of the
built-in plugins, Kubernetes' default ones are active. The weight and arguments of a
profile have precedence over a plugin's own. Plugins are ordered by the profile, then by their `order`, then by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from koordpolicy.engine.cluster.kinds import Read, with_whole
from koordpolicy.engine.framework.border import describe, must_be_survived, text_of
from koordpolicy.engine.framework.discovery import FRAMEWORKS, PROTOCOLS, methods_of
from koordpolicy.engine.framework.instances import Adoption
from koordpolicy.engine.framework.points import Enforcement, Framework, Point
from koordpolicy.engine.framework.registry import Plugin, Registry
from koordpolicy.engine.framework.scheduler import (
    AfterFilter,
    AfterPostFilter,
    AfterPreFilter,
    ApplyPatch,
    BeforeFilter,
    BeforePreFilter,
    BeforeScore,
    Cacheable,
    FilterNode,
    PreBind,
    PreBindPreFlight,
    PreBindReservation,
    ScoreNode,
)
from koordpolicy.engine.source import PolicyError, Problem, did_you_mean

from .rowwise import RowwiseFilter, RowwiseScore, has

EVERYTHING: Final = "*"
_MOST_SHAPES: Final = 2_048
_MOST_SKIPPED: Final = 64
POINTS: Final = FRAMEWORKS[Framework.SCHEDULER]
"""The extension points of the scheduler, in their order."""

CAPABILITIES: Final[Mapping[type, Point]] = {
    BeforePreFilter: Point.PRE_FILTER,
    AfterPreFilter: Point.PRE_FILTER,
    BeforeFilter: Point.FILTER,
    AfterFilter: Point.FILTER,
    AfterPostFilter: Point.POST_FILTER,
    BeforeScore: Point.SCORE,
    PreBind: Point.PRE_BIND,
    PreBindPreFlight: Point.PRE_BIND,
    PreBindReservation: Point.PRE_BIND,
    ApplyPatch: Point.PRE_BIND,
}
"""Protocols that are called only for plugins active at a point, in the order of that point.

As in Koordinator `pkg/scheduler/frameworkext/framework_extender.go`.
"""


@dataclass(frozen=True, slots=True)
class PluginChoice:
    """A plugin that a profile names; Weight None (or 0, as in a component configuration) means the plugin's own weight.

    `points` limits it to some extension points; None means all of its points.
    """

    name: str
    weight: int | None = None
    args: Mapping[str, Any] = field(default_factory=dict)
    points: frozenset[Point] | None = None


@dataclass(frozen=True, slots=True)
class ProfileSpec:
    """The plugins that a configuration enables and disables for a profile; named ones must exist.

    `disabled` holds names (`*` for all) that are not active by default, per point, under None for all points.
    Plugins in `enabled` are active even if they are disabled.
    """

    name: str = "default-scheduler"
    enabled: tuple[PluginChoice, ...] = ()
    disabled: Mapping[Point | None, frozenset[str]] = field(default_factory=dict)
    args: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Arguments by plugin, also of plugins that are active by default; those in `enabled` have precedence."""
    named_only: bool = False
    """True if Python plugins are active only where they are named; documents are active by default in any case."""


@dataclass(frozen=True, slots=True)
class Active:
    """A plugin that is active at one point of one profile."""

    plugin: Plugin
    weight: int
    instance: Any
    """The instance, which implements the point's protocol for all rows at once."""

    @property
    def name(self) -> str:
        """The plugin's name."""
        return self.plugin.name

    @property
    def enforced(self) -> bool:
        """True if its results are enforced, and not only reported."""
        return self.plugin.enforcement is Enforcement.ENFORCE


class Profile:
    """The instantiated plugins of one profile, in order, under one generation. Immutable."""

    def __init__(
        self, name: str, generation: int, at: Mapping[Point, tuple[Active, ...]], made: tuple[Active, ...],
    ) -> None:
        """`made` are all active plugins, each once, in the profile's order, with the plugin itself as instance."""
        self.name = name
        self.generation = generation
        self.at = at
        self.made = made
        self._having: dict[type, tuple[Active, ...]] = {}
        self._without: dict[tuple[Point, frozenset[str]], tuple[Active, ...]] = {}
        self._skipped: dict[tuple[Point, bytes], set[str]] = {}
        self.repeating = {point: frozenset(
            each.name for each in found if each.enforced and has(each.instance, *methods_of(Cacheable))
        ) for point, found in at.items()}
        """By point, the plugins with a cache key, whose results are cached."""
        self.warns = any(each.plugin.enforcement is Enforcement.WARN for each in (*self.filters, *self.pre_filters))
        """True if the profile has filters that only warn."""

    @classmethod
    def of(cls, spec: ProfileSpec, registry: Registry, instances: Adoption) -> Profile:
        """Return the profile of a spec, with instances of the registry's plugins.

        Raises: PolicyError: plugins are unknown, reject their arguments or cannot be made; all such problems.
        """
        problems: list[Problem] = []
        active: dict[Point, list[Active]] = {point: [] for point in POINTS}
        made: dict[str, Active] = {}
        for choice, plugin, args in _checked(spec, registry, problems):
            try:
                instance = instances.get(spec.name, plugin, args)
            except PolicyError as error:
                problems.extend(error.problems)
                continue
            except BaseException as error:  # see `_checked`
                must_be_survived(error)
                problems.append(_fault_of(plugin, error))
                continue
            weight = choice.weight or plugin.weight
            made.setdefault(plugin.name, Active(plugin, weight, instance))
            for point in choice.points if choice.points is not None else POINTS:
                if point not in plugin.points or point not in active:
                    continue
                found = _implementation(instance, point)
                if found is None:
                    problems.append(Problem(
                        f"the plugin `{plugin.name}` declares the point `{point.value}` and does not implement it",
                        plugin.span, f"it comes from {plugin.origin}", code="plugin-point",
                    ))
                else:
                    active[point].append(Active(plugin, weight, found))
        if len(active[Point.QUEUE_SORT]) > 1:
            names = ", ".join(f"`{each.name}`" for each in active[Point.QUEUE_SORT])
            problems.append(Problem(f"profile `{spec.name}` sorts its queue in more than one way: {names}",
                                    help="enable one of them", code="plugin-point"))
        if problems:
            raise PolicyError(problems)
        at = {point: tuple(found) for point, found in active.items()}
        return cls(spec.name, registry.generation, at, tuple(made.values()))

    @property
    def pre_filters(self) -> tuple[Active, ...]:
        """The plugins that run before any node is filtered."""
        return self.at[Point.PRE_FILTER]

    @property
    def filters(self) -> tuple[Active, ...]:
        """The plugins that filter nodes."""
        return self.at[Point.FILTER]

    @property
    def scores(self) -> tuple[Active, ...]:
        """The plugins that score nodes."""
        return self.at[Point.SCORE]

    @property
    def reserves(self) -> tuple[Active, ...]:
        """The plugins that reserve."""
        return self.at[Point.RESERVE]

    def having(self, capability: type) -> tuple[Active, ...]:
        """Return the plugins that implement a protocol, in the order of its extension point (`CAPABILITIES`).

        For a protocol without a point, these are all plugins active at any point, in the profile's order.
        """
        found = self._having.get(capability)
        if found is None:
            point = CAPABILITIES.get(capability)
            among = self.made if point is None else self._made_of(point)
            methods = methods_of(capability)
            found = self._having[capability] = tuple(each for each in among if has(each.instance, *methods))
        return found

    def without(self, point: Point, skipped: frozenset[str]) -> tuple[Active, ...]:
        """Return the plugins of a point that are not skipped."""
        found = self._without.get((point, skipped))
        if found is None:
            if len(self._without) >= _MOST_SKIPPED:
                self._without.clear()
            found = self._without[point, skipped] = tuple(each for each in self.at[point] if each.name not in skipped)
        return found

    def skipped(self, point: Point, shape: bytes | None) -> set[str]:
        """Return the names of the plugins that a point skips for pods of a shape; callers add to it.

        For pods without a shape it is a new set.
        """
        if shape is None:
            return set()
        found = self._skipped.get((point, shape))
        if found is None:
            if len(self._skipped) >= _MOST_SHAPES:
                self._skipped.clear()
            found = self._skipped[point, shape] = set()
        return found

    def plugins(self) -> tuple[str, ...]:
        """Return the names of all active plugins, sorted."""
        return tuple(sorted({each.name for active in self.at.values() for each in active}))

    def _made_of(self, point: Point) -> tuple[Active, ...]:
        instances = {each.name: each for each in self.made}
        return tuple(instances[each.name] for each in self.at[point])


def check_profiles(specs: Iterable[ProfileSpec], registry: Registry) -> None:
    """Check that a registry has the plugins of profiles, and that these accept the profiles' arguments; makes no
    instance.

    Raises:
        PolicyError: with all problems, each with its position if it has one.
    """
    problems: list[Problem] = []
    for spec in specs:
        for _ in _checked(spec, registry, problems):
            pass
    if problems:
        raise PolicyError(dict.fromkeys(problems))


def reads_of(spec: ProfileSpec, registry: Registry) -> Mapping[str, tuple[Read, ...]]:
    """Return the kinds of objects that a profile's active plugins read, by plugin name."""
    return {plugin.name: plugin.reads for _, plugin in _chosen(spec, registry, []) if plugin.reads}


def full_reads_of(spec: ProfileSpec, registry: Registry) -> Mapping[str, tuple[Read, ...]]:
    """Return `reads_of` of all active plugins, with whole nodes and pods for plugins that do not name these kinds."""
    return {plugin.name: with_whole(plugin.reads) for _, plugin in _chosen(spec, registry, [])}


def all_reads_of(specs: Iterable[ProfileSpec], *registries: Registry) -> list[Read]:
    """Return `full_reads_of` of all these profiles with each of the registries, together."""
    specs = tuple(specs)
    return [read for registry in registries for spec in specs
            for reads in full_reads_of(spec, registry).values() for read in reads]


def _checked(
    spec: ProfileSpec, registry: Registry, problems: list[Problem],
) -> Iterable[tuple[PluginChoice, Plugin, Mapping[str, Any]]]:
    for choice, plugin in _chosen(spec, registry, problems):
        args = {**spec.args.get(plugin.name, {}), **choice.args}
        try:
            checked = plugin.check_args(args) if plugin.check_args is not None else args
        except PolicyError as error:
            problems.extend(error.problems)
        except BaseException as error:  # a plugin's own code: any exception is reported as its fault
            must_be_survived(error)
            problems.append(_fault_of(plugin, error))
        else:
            yield choice, plugin, checked


def _fault_of(plugin: Plugin, error: BaseException) -> Problem:
    text = text_of(error) if isinstance(error, ValueError) else describe(error)
    return Problem(f"the scheduler plugin `{plugin.name}` cannot be made: {text}", plugin.span,
                   f"it comes from {plugin.origin}", code="plugin-args")


def _chosen(spec: ProfileSpec, registry: Registry, problems: list[Problem]) -> Iterable[tuple[PluginChoice, Plugin]]:
    plugins = {plugin.name: plugin for plugin in registry.of_framework(Framework.SCHEDULER)}
    disabled = frozenset[str]().union(*spec.disabled.values()) - {EVERYTHING}
    for what, names in (("disables", disabled), ("has arguments for", frozenset(spec.args))):
        problems.extend(
            Problem(f"profile `{spec.name}` {what} the plugin `{name}`, which does not exist",
                    help=did_you_mean(name, plugins), code="unknown-plugin")
            for name in sorted(names.difference(plugins))
        )
    named: dict[str, frozenset[Point] | None] = {}
    for choice in spec.enabled:
        plugin = plugins.get(choice.name)
        if plugin is None:
            problems.append(Problem(f"profile `{spec.name}` enables the plugin `{choice.name}`, which does not exist",
                                    help=did_you_mean(choice.name, plugins), code="unknown-plugin"))
            continue
        before = named.get(choice.name, frozenset())
        if before is None or (choice.points is not None and before & choice.points):
            problems.append(Problem(f"profile `{spec.name}` enables the plugin `{choice.name}` twice",
                                    help="name it once", code="duplicate-plugin"))
            continue
        named[choice.name] = None if choice.points is None else before | choice.points
        yield choice, plugin
    for name, plugin in plugins.items():
        taken = named.get(name, frozenset())
        if taken is None or not plugin.enabled or not (plugin.profiles is None or spec.name in plugin.profiles):
            continue
        if spec.named_only and plugin.span is None:
            continue
        if EVERYTHING in (off := spec.disabled.get(None, frozenset())) or name in off:
            continue
        points = frozenset(
            point for point in POINTS
            if point not in taken and not spec.disabled.get(point, frozenset()) & {name, EVERYTHING}
        )
        yield PluginChoice(name, plugin.default_weight, points=points), plugin


def _implementation(instance: Any, point: Point) -> Any:
    if point is Point.FILTER and has(instance, *methods_of(FilterNode)) and not has(instance, "filter"):
        return RowwiseFilter(instance)
    if point is Point.SCORE and has(instance, *methods_of(ScoreNode)) and not has(instance, "score"):
        return RowwiseScore(instance)
    if point is Point.FILTER or point is Point.SCORE:
        return instance if has(instance, *methods_of(PROTOCOLS[point][0])) else None
    return instance if any(has(instance, *methods_of(each)) for each in PROTOCOLS[point]) else None
