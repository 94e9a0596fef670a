"""Arguments of LowNodeUtilization and HighNodeUtilization: decoding and validation (Kubernetes' descheduler)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from koordpolicy.engine.descheduler.argument_faults import Fault, refuse
from koordpolicy.engine.descheduler.plugin_args import decode

METRIC_RESOURCE: Final = "MetricResource"
"""The only resource of thresholds on a query of Prometheus."""
KUBERNETES_METRICS: Final = "KubernetesMetrics"
PROMETHEUS: Final = "Prometheus"
ONLY_THRESHOLDING: Final = "OnlyThresholdingResources"


def _check_namespaces(args: Mapping[str, Any]) -> Iterator[Fault]:
    if (args.get("evictableNamespaces") or {}).get("include"):
        yield ("evictableNamespaces", "include"), "only Exclude namespaces can be set, inclusion is not supported"


def _check_thresholds(args: Mapping[str, Any], field: str, prefix: str = "") -> Iterator[Fault]:
    thresholds = args.get(field) or {}
    if not thresholds:
        yield (field,), f"{prefix}no resource threshold is configured"
    for resource, percent in thresholds.items():
        if not 0 <= percent <= 100:
            yield (field, resource), f"{prefix}{resource} threshold not in [0, 100] range"


def check_high(args: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield the faults of decoded HighNodeUtilizationArgs."""
    yield from _check_namespaces(args)
    yield from _check_thresholds(args, "thresholds")
    for index, mode in enumerate(args.get("evictionModes") or ()):
        if mode != ONLY_THRESHOLDING:
            yield ("evictionModes", index), f"invalid eviction mode {mode}"


def check_low(args: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield the faults of decoded LowNodeUtilizationArgs."""
    yield from _check_namespaces(args)
    faults = [
        *_check_thresholds(args, "thresholds", "thresholds config is not valid: "),
        *_check_thresholds(args, "targetThresholds", "targetThresholds config is not valid: "),
    ]
    yield from faults or _check_pair(args)
    yield from _check_metrics(args)


def _check_pair(args: Mapping[str, Any]) -> Iterator[Fault]:
    thresholds, targets = args["thresholds"], args["targetThresholds"]
    if thresholds.keys() != targets.keys():
        yield ("targetThresholds",), "thresholds and targetThresholds configured different resources"
        return
    for resource, percent in thresholds.items():
        if percent > targets[resource] and not args.get("useDeviationThresholds"):
            yield ("thresholds", resource), f"thresholds' {resource} percentage is greater than targetThresholds'"


def _check_metrics(args: Mapping[str, Any]) -> Iterator[Fault]:
    metrics, path = args.get("metricsUtilization"), "metricsUtilization"
    if metrics is None:
        return
    source, prometheus = metrics.get("source") or "", metrics.get("prometheus")
    if source == KUBERNETES_METRICS and metrics.get("metricsServer"):
        yield (path, "metricsServer"), f'it is not allowed to set both "{source}" source and metricsServer'
    if source == KUBERNETES_METRICS and prometheus is not None:
        yield (path, "prometheus"), f'prometheus configuration is not allowed to set when source is set to "{source}"'
    if source not in ("", KUBERNETES_METRICS, PROMETHEUS):
        yield (path, "source"), f"`{source}` is not a source: write {KUBERNETES_METRICS} or {PROMETHEUS}"
    elif not source and not metrics.get("metricsServer"):
        yield (path, "source"), f"metrics source is empty: write {KUBERNETES_METRICS} or {PROMETHEUS}"
    if source != PROMETHEUS:
        return
    if not (prometheus or {}).get("query"):
        yield (path, "prometheus", "query"), f'prometheus query is required when metrics source is set to "{source}"'
    url = (prometheus or {}).get("url")
    if url is not None and not _is_url(url):
        yield (path, "prometheus", "url"), f"`{url}` is not the http or https URL of a server"
    for field in ("thresholds", "targetThresholds"):
        names = list(args.get(field) or ())
        if names and names != [METRIC_RESOURCE]:
            message = (
                f'{field} are expected to specify a single instance of "{METRIC_RESOURCE}" resource, got '
                f"[{' '.join(names)}] instead"
            )
            yield (field,), message


def _is_url(text: str) -> bool:
    """Return whether a text is the URL of an HTTP server, without a user, a query and a fragment."""
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises `ValueError` for one that is none
    except ValueError:
        return False
    return (parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
            and not parts.query and not parts.fragment and text.isprintable() and " " not in text)


def check_low_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return valid LowNodeUtilizationArgs; raise `ArgumentError` with all faults."""
    given = decode(args, "LowNodeUtilizationArgs")
    refuse(check_low(given))
    return given


def check_high_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return valid HighNodeUtilizationArgs; raise `ArgumentError` with all faults."""
    given = decode(args, "HighNodeUtilizationArgs")
    refuse(check_high(given))
    return given
