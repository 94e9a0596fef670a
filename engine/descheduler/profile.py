"""Profiles of the descheduler: their specs, and their plugins, made and checked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.kinds import Lack, Read, lacking
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.cluster.state import ClusterState
from koordpolicy.engine.compile import CompiledDescheduler
from koordpolicy.engine.documents.nodes import YamlNode
from koordpolicy.engine.framework.border import must_be_survived, text_of
from koordpolicy.engine.framework.descheduler import (
    Balance,
    Deschedule,
    Evict,
    EvictionFilter,
    EvictWithOptions,
    PreEvictionFilter,
)
from koordpolicy.engine.framework.handle import NOTHING, Client, Handle
from koordpolicy.engine.framework.points import Enforcement, Framework, Point, Proof
from koordpolicy.engine.framework.registry import Plugin, Registry
from koordpolicy.engine.source import PolicyError, Problem, Span, did_you_mean

from .argument_faults import ArgumentError, fault_text
from .arguments import place_of
from .decoding import ARGUMENTS, PROOF
from .documents import DocumentPlugin, SourceStreaks


@dataclass(frozen=True, slots=True)
class DeschedulerProfileSpec:
    """A profile to build: its plugins by point, in order, and their arguments.

    `args` are by plugin name; those in `complete` are already in internal form, all others are checked and completed by
    the plugin itself.
    """

    name: str
    node_selector: Mapping[str, Any] | None = None
    deschedule: tuple[str, ...] = ()
    balance: tuple[str, ...] = ()
    evict: tuple[str, ...] = ()
    filter: tuple[str, ...] = ()
    disabled: frozenset[str] = frozenset()
    """Names of documents that are not active in this profile; `*` for all, `deschedule/*` for those of a point."""
    args: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    complete: frozenset[str] = frozenset()
    has_plugins: bool = True
    """False if the profile has no plugins section; such a profile is refused."""
    configured: tuple[str, ...] = ()
    """The plugin names of its arguments as written, to find duplicates."""
    grace_period_s: int | None = None
    """Seconds until the containers of an evicted pod are killed; None leaves it to the pod."""
    reports_failures: bool = False
    """True if each eviction that the API server refuses is an event."""
    written: Mapping[str, YamlNode] = field(default_factory=dict, repr=False, compare=False)
    """The arguments in the file, by plugin name, for the positions of problems."""
    places: Mapping[tuple[str, str], Span] = field(default_factory=dict, repr=False, compare=False)
    """The positions of plugins in the lists of the file, by point and name."""
    proof: Mapping[str, Proof] = field(default_factory=dict)
    """The effect of the proof of a plugin's evictions by its name; for a document it replaces that of its spec."""


@dataclass(frozen=True, slots=True)
class RunningPlugin:
    """A plugin of a profile with its instance."""

    name: str
    instance: Any
    enforcement: Enforcement = Enforcement.ENFORCE
    reads: tuple[Read, ...] = ()
    """The kinds of objects that it reads; if the cluster lacks one of them, it evicts no pod and, as a filter, vetoes
    all evictions."""
    proof: Proof = Proof.OFF
    """The effect of the proof of its evictions."""
    fresh: Callable[[], Any] | None = None
    """Returns another instance with the same arguments and without state; None if there is none."""


@dataclass(frozen=True, slots=True)
class DeschedulerProfile:
    """A built profile."""

    name: str
    node_selector: Mapping[str, Any] | None
    deschedule: tuple[RunningPlugin, ...]
    balance: tuple[RunningPlugin, ...]
    filters: tuple[RunningPlugin, ...]
    evict: RunningPlugin | None
    grace_period_s: int | None = None
    """Seconds until the containers of an evicted pod are killed, if no filter chooses others; None: the pod's."""
    reports_failures: bool = False
    """True if each eviction that the API server refuses is an event."""

    @property
    def plugins(self) -> tuple[RunningPlugin, ...]:
        """All plugins, one that is active at several points once."""
        evict = () if self.evict is None else (self.evict,)
        active = (*self.deschedule, *self.balance, *self.filters, *evict)
        return tuple({each.name: each for each in active}.values())


_EVICTORS: Final = "`DefaultEvictor` and `MigrationController` evict pods; in a dry run any filter suffices"
Make: TypeAlias = Callable[[str, Plugin, Mapping[str, Any]], Any]
"""Returns the instance of a plugin for a profile, by its name, with checked arguments."""


def lacks_of(profile: DeschedulerProfile, cluster: ClusterState) -> tuple[Lack, ...]:
    """Return the plugins of a profile that read kinds which the source of the cluster does not contain."""
    active = (*profile.deschedule, *profile.balance, *profile.filters)
    return lacking({each.name: each.reads for each in active}, cluster)


_POINTS: Final[Mapping[str, tuple[Point, tuple[type, ...], str]]] = {
    "deschedule": (Point.DESCHEDULE, (Deschedule,), "DeschedulePlugin"),
    "balance": (Point.BALANCE, (Balance,), "BalancePlugin"),
    "evict": (Point.EVICTION_FILTER, (Evict, EvictWithOptions), "EvictPlugin"),
    "filter": (Point.EVICTION_FILTER, (EvictionFilter, PreEvictionFilter), "FilterPlugin"),
}


def build_profiles(
    specs: Iterable[DeschedulerProfileSpec], registry: Registry, *, dry_run: bool,
    snapshot: Callable[[], Snapshot] = lambda: Cluster().snapshot(), memory: SourceStreaks | None = None,
    client: Client = NOTHING, make: Make | None = None,
) -> tuple[DeschedulerProfile, ...]:
    """Make the plugins of all profiles; `memory` stores the state of documents that outlives a generation.

    `snapshot` returns the current cluster, and `client` writes to it, for the plugins' handles; without them they see
    an empty one. `make` returns instances that outlive a generation; without it all are made anew.

    Raises:
        PolicyError: a profile without a name or with a duplicate one, a plugin that does not exist, that does not
        implement the point it is enabled for, or whose arguments are invalid; or no evict plugin outside of a dry
        run, or several. All problems are collected.
    """
    problems: list[Problem] = []
    profiles: list[DeschedulerProfile] = []
    seen: set[str] = set()
    memory = memory or SourceStreaks()
    for spec in specs:
        log = logging.getLogger(f"koordpolicy.descheduler.{spec.name}")
        handle = Handle(spec.name, snapshot, lambda: snapshot().now, log, client=client)
        anew = partial(_make_anew, handle)
        builder = _ProfileBuilder(spec, registry, memory, make or anew, anew)
        profile = builder.build(dry_run=dry_run)
        problems += builder.problems
        if not spec.name:
            problems.append(Problem("descheduler name is needed", help="give each profile a `name`", code="profile"))
        elif not spec.has_plugins:
            message = f"plugins required for profile with descheduler name `{spec.name}`"
            problems.append(Problem(message, code="profile"))
        elif spec.name in seen:
            problems.append(Problem(f"duplicate profile with descheduler name `{spec.name}`", code="profile"))
        seen.add(spec.name)
        profiles.append(profile)
    if not profiles and not problems:
        problems.append(Problem("at least one profile is required", code="profile"))
    if problems:
        raise PolicyError(problems)
    return tuple(profiles)


def _make_anew(handle: Handle, _: str, plugin: Plugin, args: Mapping[str, Any]) -> Any:
    return plugin.make(args, handle)


class _ProfileBuilder:
    def __init__(
        self, spec: DeschedulerProfileSpec, registry: Registry, memory: SourceStreaks, make: Make, anew: Make,
    ) -> None:
        self._memory = memory
        self._anew = anew
        self._spec = spec
        self._registry = registry
        self._instance = make
        self._made: dict[str, RunningPlugin | None] = {}
        self.problems: list[Problem] = []

    def build(self, *, dry_run: bool) -> DeschedulerProfile:
        spec = self._spec
        for name in sorted({each for each in spec.configured if spec.configured.count(each) > 1}):
            self._complain(f"repeated config for plugin `{name}`")
        self._complain_unknown()
        lists = {point: self._named(point, getattr(spec, point), dry_run=dry_run) for point in _POINTS}
        for plugin in self._registry.of_framework(Framework.DESCHEDULER):
            point = self._document_list(plugin)
            if point is not None and all(each.name != plugin.name for each in lists[point]):
                active = self._make(plugin)
                if active is not None:
                    lists[point].append(active)
        if len(lists["evict"]) > 1:
            first, second = (each.name for each in lists["evict"][:2])
            self._complain("only one evict plugin can be enabled", f'`{first}` is, too; `disabled: [{{name: "*"}}]` at '
                           "`evict` drops the default one", place=self._place(second, "evict"))
        elif not spec.evict and spec.has_plugins and not dry_run:
            self._complain("no evict plugin is enabled")
        return DeschedulerProfile(
            spec.name, spec.node_selector, tuple(lists["deschedule"]), tuple(lists["balance"]), tuple(lists["filter"]),
            lists["evict"][0] if lists["evict"] else None, spec.grace_period_s, spec.reports_failures,
        )

    def _named(self, point: str, names: Sequence[str], *, dry_run: bool) -> list[RunningPlugin]:
        _, protocols, interface = _POINTS[point]
        found: list[RunningPlugin] = []
        for name in names:
            place = self._place(name, point)
            plugin = self._registry.plugins.get((Framework.DESCHEDULER, name))
            if plugin is None:
                known = [each.name for each in self._registry.of_framework(Framework.DESCHEDULER)]
                self._complain(f"{interface} `{name}` does not exist", did_you_mean(name, known), place=place)
                continue
            if any(each.name == name for each in found):
                self._complain(f"plugin `{name}` already registered as `{interface}`", place=place)
                continue
            active = self._make(plugin)
            if active is None:
                continue
            # A dry run never calls `evict`, so an evictor that implements only the filter suffices.
            if not isinstance(active.instance, protocols) and not (point == "evict" and dry_run):
                hint = _EVICTORS if point == "evict" else _implemented(plugin)
                self._complain(f"plugin `{name}` does not extend {interface} plugin", hint, place=place)
                continue
            found.append(active)
        return found

    def _complain_unknown(self) -> None:
        """Report names of unknown plugins; names in lists are reported there."""
        spec = self._spec
        known = [plugin.name for plugin in self._registry.of_framework(Framework.DESCHEDULER)]
        listed = {name for point in _POINTS for name in getattr(spec, point)}
        for name in sorted(each for each in spec.disabled - {*known} if not each.endswith("*")):
            self._complain(f"it disables the plugin `{name}`, which does not exist", did_you_mean(name, known),
                           place=self._place(name))
        for name in spec.args:
            if name not in known and name not in listed:
                self._complain(f"it has arguments for the plugin `{name}`, which does not exist",
                               did_you_mean(name, known), place=self._place(name, ARGUMENTS))
        for name in spec.proof:
            if name not in known:
                self._complain(f"its `proof` names the plugin `{name}`, which does not exist",
                               did_you_mean(name, known), place=self._place(name, PROOF))

    def _document_list(self, plugin: Plugin) -> str | None:
        """Return the list in which a plugin is active without being named, or None."""
        spec = self._spec
        if not plugin.enabled or spec.disabled & {plugin.name, "*"}:
            return None
        if plugin.profiles is not None and spec.name not in plugin.profiles:
            return None
        lists = (name for name, (point, _, _) in _POINTS.items() if name != "evict" and point in plugin.points)
        found = next(lists, None)
        return None if f"{found}/*" in spec.disabled else found

    def _make(self, plugin: Plugin) -> RunningPlugin | None:
        if plugin.name not in self._made:
            args = self._spec.args.get(plugin.name, {})
            try:
                if plugin.name not in self._spec.complete and plugin.check_args is not None:
                    args = plugin.check_args(args)
                made, proof = self._instance(self._spec.name, plugin, args), self._spec.proof.get(plugin.name)
                if isinstance(made, CompiledDescheduler):
                    proof = proof or made.spec.proof
                    instance: Any = DocumentPlugin(made, self._memory, self._spec.name, fewest=proof is Proof.ENFORCE)
                    fresh: Callable[[], Any] = partial(DocumentPlugin, made)
                else:
                    instance, fresh = made, partial(self._anew, self._spec.name, plugin, args)
                reads = plugin.reads if plugin.reads_for is None else (*plugin.reads, *plugin.reads_for(args))
                self._made[plugin.name] = RunningPlugin(
                    plugin.name, instance, plugin.enforcement, reads, proof or Proof.OFF, fresh,
                )
            except PolicyError as error:
                self.problems += error.problems
                self._made[plugin.name] = None
            except ArgumentError as error:
                node = self._spec.written.get(plugin.name)
                for fault in error.faults:
                    place = place_of(node, fault[0]) if node is not None else self._place(plugin.name)
                    self._complain(f"initializing plugin `{plugin.name}`: {fault_text(fault)}",
                                   "" if node is not None else self._misnamed(plugin.name), place=place)
                self._made[plugin.name] = None
            except BaseException as error:
                must_be_survived(error)
                written = self._spec.written.get(plugin.name)
                self._complain(f"initializing plugin `{plugin.name}`: {text_of(error)}",
                               place=None if written is None else written.span)
                self._made[plugin.name] = None
        return self._made[plugin.name]

    def _misnamed(self, name: str) -> str:
        """Return a hint at arguments of a plugin that does not exist and is spelt like this one, or an empty text."""
        known = [plugin.name for plugin in self._registry.of_framework(Framework.DESCHEDULER)]
        similar = next((each for each in self._spec.args if each not in known and did_you_mean(each, [name])), "")
        return f"its arguments may be those of `{similar}`" if similar else ""

    def _place(self, name: str, point: str = "") -> Span | None:
        """Return where a profile's file names a plugin, at the point if it is there."""
        places = self._spec.places
        return places.get((point, name)) or next((span for key, span in places.items() if key[1] == name), None)

    def _complain(self, message: str, hint: str = "", *, place: Span | None = None) -> None:
        self.problems.append(Problem(f"profile `{self._spec.name}`: {message}", place, help=hint, code="profile"))


def _implemented(plugin: Plugin) -> str:
    """Return in which lists of a profile a plugin may be; empty for none."""
    lists = [f"`{name}`" for name, (point, _, _) in _POINTS.items() if name != "evict" and point in plugin.points]
    return f"name it under {' or '.join(lists)}" if lists else ""
