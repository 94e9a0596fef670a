"""The scheduler's configuration file: `KubeSchedulerConfiguration`, version v1.

The file is decoded strictly against its schema; then each profile's plugins are merged with the defaults and expanded
to points. The rules are kube-scheduler's (mergePlugins, expandMultiPointPlugins) and Koordinator's, which appends
`DefaultPreBind` to the `preBind` plugins of a profile that does not list it. Every problem has its position in the file
and the path of the field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from koordpolicy.engine.documents import read_configuration
from koordpolicy.engine.documents.ignored_fields import ignored
from koordpolicy.engine.documents.nodes import YamlNode, read_file, to_plain
from koordpolicy.engine.documents.validation import validate
from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Plugin, Registry
from koordpolicy.engine.source import PolicyError, Problem, Severity, Source, did_you_mean

from .profile import EVERYTHING, POINTS, PluginChoice, ProfileSpec

API_VERSION: Final = "kubescheduler.config.k8s.io/v1"
KIND: Final = "KubeSchedulerConfiguration"
DEFAULT_NAME: Final = "default-scheduler"
MULTI_POINT: Final = "multiPoint"
PRE_BINDER: Final = "DefaultPreBind"
SECOND: Final = 1_000_000_000

UPSTREAM: Final = frozenset(("DynamicResources", "GangScheduling", "NodeDeclaredFeatures"))
"""Plugins of kube-scheduler and koord-scheduler that are not implemented here: a file may name them, without effect."""

_NO_SERVER: Final = "it says how kube-scheduler's own process is reached and looked into"
IGNORED: Final[Mapping[str, str]] = {
    "extenders": "extenders are not called", "percentageOfNodesToScore": "all nodes are filtered and scored",
    "parallelism": "decisions are made in one thread", "leaderElection": "no lease is held",
    "clientConnection": "`--cluster` and the kubeconfig say how the cluster is read",
    "delayCacheUntilActive": "no lease is waited for", "healthzBindAddress": _NO_SERVER,
    "metricsBindAddress": _NO_SERVER, "enableProfiling": _NO_SERVER, "enableContentionProfiling": _NO_SERVER,
}
"""Fields of the file without effect here, with the reason; some may be in a profile, too."""

_TYPE_FIELDS: Final = frozenset(("apiVersion", "kind"))
_MOST_WEIGHT: Final = 2**31 - 1
"""Weights are 32 bits wide in the API."""
_BY_NAME: Final = {point.value: point for point in POINTS}
_FIELD: Final = re.compile(r"`([A-Za-z][\w.\[\]/-]*)`")
_STEP: Final = re.compile(r"[^.\[\]]+")


@dataclass(frozen=True, slots=True)
class SchedulerConfiguration:
    """A valid configuration of a scheduler; backoffs in nanoseconds."""

    profiles: tuple[ProfileSpec, ...]
    initial_backoff: int = 1 * SECOND
    longest_backoff: int = 10 * SECOND
    warnings: tuple[Problem, ...] = ()
    """The settings of the file that have another effect here, or none."""
    plain: Mapping[str, Any] = field(default_factory=dict, repr=False)


LIVE: Final = frozenset({"leaderElection", "clientConnection"})
"""The fields that have an effect in a scheduler of a live cluster only."""


def load(path: Path, registry: Registry, *, live: bool = False) -> SchedulerConfiguration:
    """Read a configuration file; see `read`.

    Raises:
        PolicyError: with all problems.
    """
    return read(read_file(path), registry, live=live)


def read(source: Source, registry: Registry, *, live: bool = False) -> SchedulerConfiguration:
    """Read a configuration; `registry` has the plugins that it may name, and the default ones.

    With `live` the fields `LIVE` have an effect, which is the caller's.

    A ConfigMap manifest with a configuration under a key is accepted too.

    Raises:
        PolicyError: all problems, each with its position and a hint.
    """
    node = _without_nulls(read_configuration(source, KIND))
    problems = list(_decode(node))
    if problems:
        raise PolicyError(problems)
    plugins = {plugin.name: plugin for plugin in registry.of_framework(Framework.SCHEDULER)}
    reading = _Reading(plugins)
    profiles = tuple(reading.profile(each) for each in reading.profiles(node))
    reading.check_names(node)
    reading.check_queue(node, profiles)
    initial, longest = (_number(node, name, default) for name, default in
                        (("podInitialBackoffSeconds", 1), ("podMaxBackoffSeconds", 10)))
    if longest < initial:
        place = node.at("podMaxBackoffSeconds") or node.at("podInitialBackoffSeconds") or node
        reading.complain(f"podMaxBackoffSeconds: must be at least podInitialBackoffSeconds ({initial}), not {longest}",
                         place)
    reading.warn_of_unused(node, LIVE if live else frozenset())
    if reading.errors:
        raise PolicyError(reading.errors)
    return SchedulerConfiguration(profiles, initial * SECOND, longest * SECOND, tuple(reading.warnings), to_plain(node))


def _without_nulls(node: YamlNode) -> YamlNode:
    """Return a configuration without null fields, which the API machinery ignores.

    A null in a list is an object without fields. Plugin arguments are not changed, except at their top level.
    """
    value = node.value
    if isinstance(value, tuple):
        empty: Mapping[str, YamlNode] = {}
        return replace(node, value=tuple(
            replace(each, value=empty) if each.value is None else _without_nulls(each) for each in value
        ))
    if not isinstance(value, Mapping):
        return node
    found = {key: each for key, each in value.items() if each.value is not None}
    return replace(node, value={key: _args_of(each) if key == "args" else _without_nulls(each)
                                for key, each in found.items()})


def _args_of(node: YamlNode) -> YamlNode:
    fields = {key: each for key, each in node.fields.items() if each.value is not None or key not in _TYPE_FIELDS}
    return replace(node, value=fields) if node.fields else node


def _decode(node: YamlNode) -> Iterator[Problem]:
    version, kind = node.at("apiVersion"), node.at("kind")
    if not node.fields or version is None or kind is None:
        yield Problem(f"this is not a `{KIND}`: it does not say `apiVersion` and `kind`", node.span,
                      f"begin with `apiVersion: {API_VERSION}` and `kind: {KIND}`", code="not-a-configuration")
    elif kind.scalar != KIND:
        yield Problem(f"couldn't decode as `{KIND}`, got kind `{kind.scalar}`", kind.span, f"write `{KIND}`",
                      code="not-a-configuration")
    elif version.scalar != API_VERSION:
        yield Problem(f"no kind `{kind.scalar}` is registered for version `{version.scalar}`", version.span,
                      f"write `{API_VERSION}`", code="not-a-configuration")
    else:
        yield from validate(node, KIND)


def _number(node: YamlNode, name: str, default: int) -> int:
    found = node.at(name)
    return found.scalar if found is not None and isinstance(found.scalar, int) else default


def _text(node: YamlNode | None) -> str:
    return str(node.scalar) if node is not None and node.scalar is not None else ""


def _place_in_order(plugin: Plugin) -> tuple[int, str]:
    return plugin.order, plugin.name


@dataclass(frozen=True, slots=True)
class _Named:
    """A plugin in a list of the file; `place` is None for a default."""

    name: str
    weight: int = 0
    place: YamlNode | None = None


class _Reading:
    """The reading of one configuration, with its problems."""

    def __init__(self, plugins: Mapping[str, Plugin]) -> None:
        self.errors: list[Problem] = []
        self.warnings: list[Problem] = []
        self._plugins = plugins
        defaults = [each for each in plugins.values() if each.default_weight is not None]
        self._defaults = [_Named(each.name, each.default_weight or 0) for each in sorted(defaults, key=_place_in_order)]
        self._seen: dict[str, YamlNode] = {}

    def complain(self, message: str, place: YamlNode, hint: str = "") -> None:
        """Record a problem."""
        self.errors.append(Problem(message, place.place, hint, code="configuration"))

    def profiles(self, node: YamlNode) -> tuple[YamlNode | None, ...]:
        """Return the profiles of the file; one without a name if there are none."""
        found = node.at("profiles")
        return found.items if found is not None and found.items else (None,)

    def profile(self, node: YamlNode | None) -> ProfileSpec:
        """Return a profile, its plugins merged with the defaults and expanded to points."""
        name = (_text(node.at("schedulerName")) if node is not None else "") or DEFAULT_NAME
        if node is not None:
            if name in self._seen:
                self.complain(f"schedulerName: the name `{name}` is an earlier profile's too",
                              node.at("schedulerName") or node, "give each profile its own name")
            self._seen.setdefault(name, node)
        given = node.at("plugins") if node is not None else None
        multi = self._merged(given, MULTI_POINT, self._defaults)
        off: dict[Point | None, frozenset[str]] = {None: self._disabled(given, MULTI_POINT)}
        choices: list[PluginChoice] = []
        for point in POINTS:
            named = self._merged(given, point.value, [])
            disabled = self._disabled(given, point.value)
            off[point] = disabled
            if point is Point.PRE_BIND and given is not None and PRE_BINDER in self._plugins and not (
                    disabled & {PRE_BINDER} or PRE_BINDER in {each.name for each in named}):
                named.append(_Named(PRE_BINDER))
            choices += (PluginChoice(each.name, each.weight, points=frozenset({point}))
                        for each in self._expanded(point, multi, named, disabled))
        binds = any(choice.points == frozenset((Point.BIND,)) for choice in choices)
        if given is not None and not binds and any(Point.BIND in each.points for each in self._plugins.values()):
            self._warn("bind: no bind plugin is enabled, which kube-scheduler refuses: pods are bound by the framework",
                       given, "enable `DefaultBinder`")
        return ProfileSpec(
            name, tuple(choices), {point: names - {EVERYTHING} for point, names in off.items() if names - {EVERYTHING}},
            self._args(node), named_only=True,
        )

    def check_names(self, node: YamlNode) -> None:
        """Check that several profiles have names: only a single profile may go without."""
        found = self.profiles(node)
        for index, each in enumerate(found):
            if each is not None and len(found) > 1 and each.at("schedulerName") is None:
                self.complain(f"profiles[{index}].schedulerName: required where there are several profiles", each,
                              "name the profile as pods do")

    def check_queue(self, node: YamlNode, profiles: Sequence[ProfileSpec]) -> None:
        """Check that all profiles have the same queueSort plugin, since they share one queue."""
        sorting = frozenset({Point.QUEUE_SORT})
        sorts = [[choice.name for choice in profile.enabled if choice.points == sorting] for profile in profiles]
        for place, names in zip(self.profiles(node), sorts, strict=True):
            at = place if place is not None else node
            if not names and place is not None and place.at("plugins") is not None and sorts[0] == names:
                self._warn("queueSort: no queue sort plugin is enabled, which kube-scheduler refuses: pods are taken by"
                           " priority", at, "enable `PrioritySort`")
            elif len(names) > 1:
                self.complain(f"queueSort: only one plugin can sort the queue, not {', '.join(names)}", at,
                              "disable all but one")
            elif names != sorts[0]:
                self.complain(f"queueSort: different queue sort plugins: {', '.join(names) or 'none'} here,"
                              f" {', '.join(sorts[0]) or 'none'} in the first profile", at,
                              "all profiles share one queue: enable the same")

    def warn_of_unused(self, node: YamlNode, used: frozenset[str]) -> None:
        """Warn of settings of the file that have another effect here, or none."""
        self.warnings.extend(ignored(node, {name: why for name, why in IGNORED.items() if name not in used}))
        for profile in self.profiles(node):
            if profile is not None:
                self.warnings.extend(ignored(profile, IGNORED, "profiles."))

    def _warn(self, message: str, place: YamlNode, hint: str = "") -> None:
        self.warnings.append(Problem(message, place.place, hint, Severity.WARNING, code="configuration"))

    def _listed(self, given: YamlNode | None, point: str, which: str) -> Iterator[YamlNode]:
        found = given.at(point, which) if given is not None else None
        yield from found.items if found is not None else ()

    def _disabled(self, given: YamlNode | None, point: str) -> frozenset[str]:
        names = set()
        for each in self._listed(given, point, "disabled"):
            name = _text(each.at("name"))
            names.add(name)
            if name != EVERYTHING and name not in self._plugins and name not in UPSTREAM:
                self._unknown(name, f"plugins.{point}.disabled", each)
        return frozenset(names & {EVERYTHING, *self._plugins})

    def _merged(self, given: YamlNode | None, point: str, defaults: Sequence[_Named]) -> list[_Named]:
        """Return the defaults that are not disabled, each replaced by a user's entry of its name; then the user's other
        entries.
        """
        disabled = self._disabled(given, point)
        added: dict[str, _Named] = {}
        for each in self._listed(given, point, "enabled"):
            name = _text(each.at("name"))
            path = f"plugins.{point}.enabled"
            if name in added:
                self.complain(f"{path}: the plugin `{name}` is enabled twice", each, "name it once")
            elif name in UPSTREAM and name not in self._plugins:
                self._warn(f"{path}: the plugin `{name}` is not built here and does nothing", each)
            elif name not in self._plugins:
                self._unknown(name, path, each)
            elif point != MULTI_POINT and _BY_NAME[point] not in self._plugins[name].points:
                extended = ", ".join(f"`{one.value}`" for one in self._plugins[name].points)
                self.complain(f"{path}: the plugin `{name}` does not extend `{point}`", each, f"it extends {extended}")
            elif _number(each, "weight", 0) > _MOST_WEIGHT:
                self.complain(f"{path}: the weight of `{name}` is more than {_MOST_WEIGHT}", each, "weights are small")
            else:
                points = self._plugins[name].points if point == MULTI_POINT else (_BY_NAME[point],)
                if _number(each, "weight", 0) and Point.SCORE not in points:
                    self._warn(f"{path}: the weight of `{name}` has no effect: nothing is scored there",
                               each.at("weight") or each)
                added[name] = _Named(name, _number(each, "weight", 0), each)
        remaining = [] if EVERYTHING in disabled else [each for each in defaults if each.name not in disabled]
        merged = [added.pop(each.name, each) for each in remaining]
        return [*merged, *added.values()]

    def _expanded(
        self, point: Point, multi: Sequence[_Named], named: Sequence[_Named], disabled: frozenset[str],
    ) -> Iterator[_Named]:
        """Return a point's plugins: those of both lists in the point's order, multiPoint's, then the point's own."""
        if EVERYTHING in disabled:
            multi = ()
        of_point = {each.name for each in named}
        of_multi = {each.name for each in multi}
        yield from (each for each in named if each.name in of_multi)
        yield from (each for each in multi if each.name not in of_point and each.name not in disabled
                    and point in self._plugins[each.name].points)
        yield from (each for each in named if each.name not in of_multi)

    def _unknown(self, name: str, path: str, place: YamlNode) -> None:
        self.errors.append(Problem(f"{path}: there is no plugin `{name}`", (place.at("name") or place).span,
                                   did_you_mean(name, self._plugins), code="unknown-plugin"))

    def _args(self, node: YamlNode | None) -> dict[str, Mapping[str, Any]]:
        configs = node.at("pluginConfig") if node is not None else None
        found: dict[str, Mapping[str, Any]] = {}
        for index, config in enumerate(configs.items if configs is not None else ()):
            name, args, path = _text(config.at("name")), config.at("args"), f"pluginConfig[{index}]"
            if name in found:
                self.complain(f"{path}: `{name}` is configured twice in this profile", config, "configure it once")
                continue
            if name not in self._plugins:
                if name in UPSTREAM:
                    self._warn(f"{path}: the plugin `{name}` is not built here and does nothing", config)
                else:
                    self._unknown(name, path, config)
                continue
            plain = to_plain(args) if args is not None and args.value is not None else {}
            kind = plain.get("kind", f"{name}Args")
            if plain and kind != f"{name}Args" and self._plugins[name].span is None:
                self.complain(f"{path}.args.kind: `{kind}` are not the arguments of `{name}`",
                              config.at("args", "kind") or config, f"write `{name}Args`")
                continue
            found[name] = {key: value for key, value in plain.items() if key not in ("apiVersion", "kind")}
            version = plain.get("apiVersion", API_VERSION)
            if version != API_VERSION and self._plugins[name].span is None:
                self.complain(f"{path}.args.apiVersion: only `{API_VERSION}` is known, not `{version}`",
                              config.at("args", "apiVersion") or config, f"write `{API_VERSION}`")
                continue
            self._check_args(name, found[name], config, path)
        return found

    def _check_args(self, name: str, args: Mapping[str, Any], config: YamlNode, path: str) -> None:
        check = self._plugins[name].check_args
        if check is None:
            return
        try:
            check(args)
        except PolicyError as error:
            self.errors.extend(error.problems)
        except ValueError as error:
            for message in str(error).split("; "):
                self.complain(f"{path}.args: {message}", _place_of(message, config))
        else:
            find, given = self._plugins[name].ignored_args, config.at("args")
            if find is not None and given is not None:
                self.warnings.extend(ignored(given, find(args), f"{path}.args."))


def _place_of(message: str, config: YamlNode) -> YamlNode:
    """Return the position of the field that a message names, as far as the file contains it."""
    best = config.at("args") or config
    for field_path in _FIELD.findall(message):
        steps = [int(step) if step.isdecimal() else step for step in _STEP.findall(field_path)]
        for length in range(len(steps), 0, -1):
            found = config.at("args", *steps[:length])
            if found is not None:
                return found
    return best
