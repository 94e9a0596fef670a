"""Typed arguments of descheduler plugins: defaults, conversion, validation, internal form.

Users write the v1alpha2 form; its defaults are filled in, then it is converted to the internal form, which is frozen.
The rules are Koordinator's (pkg/descheduler/apis/config), including the unusual ones.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.documents import parse_duration
from koordpolicy.engine.documents.nodes import YamlNode
from koordpolicy.engine.kubernetes.selectors import check_selector
from koordpolicy.engine.source import Span

from . import koordinator_args as others
from .anomaly import AnomalyCondition
from .argument_faults import Fault, refuse

DEFAULT_POOL: Final = "__default_node_pool__"

_EXPIRATION: Final = 180
_ANOMALY: Final = {"timeout": "1m0s", "consecutiveAbnormalities": 5, "consecutiveNormalities": 3}
_CACHE_TIMEOUT: Final = "5m0s"
_THRESHOLDS: Final = ("lowThresholds", "highThresholds", "prodLowThresholds", "prodHighThresholds")
_OF_POOLS: Final = (*_THRESHOLDS, "resourceWeights")


@dataclass(frozen=True, slots=True)
class NodePool:
    """A pool of nodes that are balanced among themselves.

    Thresholds are percent of the raw allocatable, by resource.

    With `deviation` they are distances from the average of the pool instead.
    """

    name: str = ""
    selector: Mapping[str, Any] | None = None
    deviation: bool = False
    low: Mapping[str, float] | None = None
    high: Mapping[str, float] | None = None
    prod_low: Mapping[str, float] | None = None
    prod_high: Mapping[str, float] | None = None
    weights: Mapping[str, int] | None = None
    anomaly: AnomalyCondition | None = None


@dataclass(frozen=True, slots=True)
class LowNodeLoadArgs:
    """The internal form of LowNodeLoadArgs; times in nanoseconds, the metric expiration in seconds."""

    paused: bool = False
    dry_run: bool = False
    number_of_nodes: int = 0
    metric_expiration_seconds: int = _EXPIRATION
    included_namespaces: frozenset[str] = frozenset()
    excluded_namespaces: frozenset[str] = frozenset()
    pod_selectors: tuple[Mapping[str, Any], ...] = ()
    node_fit: bool = True
    detector_cache_timeout: int = 300_000_000_000
    pools: tuple[NodePool, ...] = ()


def default_low_node_load(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return v1alpha2 arguments with their defaults, in v1alpha2 form."""
    full: dict[str, Any] = {
        "paused": False, "dryRun": False, "nodeFit": True, "useDeviationThresholds": False, "numberOfNodes": 0,
        "nodeMetricExpirationSeconds": _EXPIRATION, "detectorCacheTimeout": _CACHE_TIMEOUT,
    }  # fmt: skip
    full |= copy.deepcopy({key: value for key, value in args.items() if value is not None})
    full["anomalyCondition"] = _default_anomaly(full.get("anomalyCondition"))
    full["resourceWeights"] = _default_weights(full)
    for pool in full.get("nodePools") or ():
        for key in _OF_POOLS:
            if pool.get(key) is None and full.get(key) is not None:
                pool[key] = full[key]
        given = pool.get("anomalyCondition")
        if given is None:
            pool["anomalyCondition"] = full["anomalyCondition"]
        else:
            for count in ("consecutiveAbnormalities", "consecutiveNormalities"):
                given[count] = given.get(count) or full["anomalyCondition"][count]
    return full


def _default_anomaly(given: Mapping[str, Any] | None) -> dict[str, Any]:
    if given is None:
        return dict(_ANOMALY)
    # Koordinator fills in at most one count; if both are missing, the validation reports the other one.
    full = {"consecutiveAbnormalities": 0, "consecutiveNormalities": 0, **given}
    for count in ("consecutiveAbnormalities", "consecutiveNormalities"):
        if not full[count]:
            full[count] = _ANOMALY[count]
            break
    return full


def _default_weights(args: Mapping[str, Any]) -> dict[str, int]:
    given = args.get("resourceWeights") or {}
    named = ("cpu", "memory", *(args.get("lowThresholds") or ()), *(args.get("highThresholds") or ()), *given)
    return {name: given[name] if given.get(name, 0) > 0 else 1 for name in named}


def convert_low_node_load(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return defaulted v1alpha2 arguments in internal form, as plain data.

    The top-level pool becomes the first of `nodePools`, unless it is already among them, in arguments that were written
    from the internal form.
    """
    pools = [pool for pool in args.get("nodePools") or () if pool.get("name") != DEFAULT_POOL]
    first = {key: args[key] for key in ("nodeSelector", *_OF_POOLS) if args.get(key) is not None}
    first |= {
        "name": DEFAULT_POOL, "useDeviationThresholds": args["useDeviationThresholds"],
        "anomalyCondition": args["anomalyCondition"],
    }
    copied_fields = (
        "paused", "dryRun", "numberOfNodes", "nodeMetricExpirationSeconds", "evictableNamespaces", "podSelectors",
        "nodeFit", "prodLowThresholds", "prodHighThresholds",
    )
    return {
        **{key: args[key] for key in copied_fields if args.get(key) is not None},
        "detectorCacheTimeout": parse_duration(args["detectorCacheTimeout"]),
        "nodePools": [_convert_pool(pool) for pool in (first, *pools)],
    }


def _convert_pool(pool: Mapping[str, Any]) -> dict[str, Any]:
    full = {key: value for key, value in pool.items() if value is not None}
    anomaly = full.get("anomalyCondition")
    if anomaly is not None:
        full["anomalyCondition"] = {**anomaly, "timeout": parse_duration(anomaly.get("timeout") or "0")}
    return full


def check_low_node_load(internal: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield the faults of arguments in internal form; absent fields are not checked."""
    if internal.get("numberOfNodes", 0) < 0:
        yield ("numberOfNodes",), "must be greater than or equal to 0"
    expiration = internal.get("nodeMetricExpirationSeconds")
    if expiration is not None and expiration <= 0:
        yield ("nodeMetricExpirationSeconds",), "nodeMetricExpiredSeconds should be a positive value"
    namespaces = internal.get("evictableNamespaces") or {}
    if namespaces.get("include") and namespaces.get("exclude"):
        yield ("evictableNamespaces",), "only one of Include/Exclude namespaces can be set"
    for index, each in enumerate(internal.get("podSelectors") or ()):
        yield from selector_faults(each.get("selector"), ("podSelectors", index, "selector"))
    for index, pool in enumerate(internal.get("nodePools") or ()):
        for path, message in _check_pool(pool):
            yield ("nodePools", index, *path), message


def selector_faults(selector: Mapping[str, Any] | None, path: tuple[str | int, ...]) -> Iterator[Fault]:
    """Yield the fault of a label selector at a path, if it has one."""
    try:
        check_selector(selector)
    except ValueError as error:
        yield path, str(error)


def _check_pool(pool: Mapping[str, Any]) -> Iterator[Fault]:
    yield from selector_faults(pool.get("nodeSelector"), ("nodeSelector",))
    for key in _THRESHOLDS:
        for resource, percent in (pool.get(key) or {}).items():
            if percent < 0:
                yield (key, resource), f"the threshold of `{resource}` must be greater than or equal to 0"
    for lower, upper in (("lowThresholds", "highThresholds"), ("prodLowThresholds", "prodHighThresholds")):
        for resource in sorted((pool.get(lower) or {}).keys() - (pool.get(upper) or {}).keys()):
            # Upstream takes 0 for it: all nodes are overloaded (spec 7, row 10).
            yield (lower, resource), f"`{resource}` has no threshold in `{upper}`: give both"
    for lower, upper in (("lowThresholds", "highThresholds"), ("prodHighThresholds", "highThresholds"),
                         ("prodLowThresholds", "prodHighThresholds")):
        bounds = pool.get(upper) or {}
        for resource, percent in (pool.get(lower) or {}).items():
            if resource in bounds and percent > bounds[resource]:
                yield (lower, resource), (
                    f"the threshold of `{resource}` must not be above the {bounds[resource]:g} of `{upper}`"
                )
    anomaly = pool.get("anomalyCondition")
    if anomaly is not None:
        for count in ("consecutiveAbnormalities", "consecutiveNormalities"):
            if anomaly.get(count, 0) <= 0:
                yield ("anomalyCondition", count), f"anomalyDetectionThresholds: {count} must be greater than 0"


def read_low_node_load(internal: Mapping[str, Any]) -> LowNodeLoadArgs:
    """Return valid arguments in internal form as a frozen value."""
    namespaces = internal.get("evictableNamespaces") or {}
    return LowNodeLoadArgs(
        paused=internal.get("paused", False),
        dry_run=internal.get("dryRun", False),
        number_of_nodes=internal.get("numberOfNodes", 0),
        metric_expiration_seconds=internal.get("nodeMetricExpirationSeconds", _EXPIRATION),
        included_namespaces=frozenset(namespaces.get("include") or ()),
        excluded_namespaces=frozenset(namespaces.get("exclude") or ()),
        pod_selectors=tuple(
            each["selector"] for each in internal.get("podSelectors") or () if each.get("selector") is not None
        ),
        node_fit=internal.get("nodeFit", False),
        detector_cache_timeout=internal.get("detectorCacheTimeout", 0),
        pools=tuple(_read_pool(pool) for pool in internal.get("nodePools") or ()),
    )


def _read_pool(pool: Mapping[str, Any]) -> NodePool:
    anomaly = pool.get("anomalyCondition")
    return NodePool(
        name=pool.get("name", ""),
        selector=pool.get("nodeSelector"),
        deviation=pool.get("useDeviationThresholds", False),
        low=pool.get("lowThresholds"),
        high=pool.get("highThresholds"),
        prod_low=pool.get("prodLowThresholds"),
        prod_high=pool.get("prodHighThresholds"),
        weights=pool.get("resourceWeights"),
        anomaly=None if anomaly is None else AnomalyCondition(
            anomaly.get("consecutiveAbnormalities", 0), anomaly.get("consecutiveNormalities", 0),
            anomaly.get("timeout", 0),
        ),
    )


@dataclass(frozen=True, slots=True)
class ArgsKind:
    """The conversion of arguments of one kind from their written to their internal form, as plain data."""

    kind: str
    default: Callable[[Mapping[str, Any]], dict[str, Any]]
    convert: Callable[[Mapping[str, Any]], dict[str, Any]]
    check: Callable[[Mapping[str, Any]], Iterator[Fault]]


KINDS: Final[Mapping[str, ArgsKind]] = {
    "LowNodeLoad": ArgsKind("LowNodeLoadArgs", default_low_node_load, convert_low_node_load, check_low_node_load),
    "CustomPriority": ArgsKind(
        "CustomPriorityArgs", others.default_custom_priority, others.as_written, others.check_custom_priority,
    ),
    "FragmentationAware": ArgsKind(
        "FragmentationAwareArgs", others.default_fragmentation_aware, others.as_written,
        others.check_fragmentation_aware,
    ),
    "ScaleDownBinPack": ArgsKind(
        "ScaleDownBinPackArgs", others.default_scale_down_bin_pack, others.as_written,
        others.check_scale_down_bin_pack,
    ),
}
"""The kinds of arguments by plugin name."""


def complete(plugin: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return v1alpha2 arguments of a known kind in internal form: defaulted, converted and checked.

    Raises:
        ArgumentError: with all faults and their paths.
    """
    kind = KINDS[plugin]
    internal = kind.convert(kind.default(args))
    refuse(kind.check(internal))
    return internal


def place_of(node: YamlNode | None, path: Sequence[str | int]) -> Span | None:
    """Return the position of a field, or of its nearest ancestor in the file; None without a file."""
    if node is None:
        return None
    for length in range(len(path), -1, -1):
        found = node.at(*path[:length])
        if found is not None:
            return found.place if length else found.span
    return node.span
