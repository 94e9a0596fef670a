"""The policy file of Kubernetes' descheduler: `DeschedulerPolicy` of `descheduler/v1alpha2`.

It is valid against `schemas/v1alpha2/DeschedulerPolicy.json`. As in Kubernetes' descheduler, DefaultEvictor is
a filter of each profile and evicts through the API server, and has a priority threshold even if none is written
(sigs.k8s.io/descheduler pkg/descheduler/policyconfig.go).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.documents.ignored_fields import ignored
from koordpolicy.engine.documents.nodes import YamlNode, to_plain
from koordpolicy.engine.kubernetes.label_syntax import selector_faults
from koordpolicy.engine.kubernetes.selectors import parse_selector
from koordpolicy.engine.source import PolicyError, Problem

from .decoding import items_at, places_of_plugins, written_args
from .limits import CycleLimits
from .profile import DeschedulerProfileSpec

KIND: Final = "DeschedulerPolicy"
DEFAULT_NAME: Final = "descheduler"
"""The name of the only profile, if it has none."""
EVICTOR: Final = "DefaultEvictor"
SYSTEM_CRITICAL: Final = 2_000_000_000
"""The priority from which on pods stay; Kubernetes' of system-cluster-critical."""

_NO_SORT: Final = "Kubernetes' descheduler has no plugin of this point"
_PROMETHEUS: Final = "Prometheus"
_NO_SECRETS: Final = ("Secrets are not read: mount it, and name the file in the plugin's arguments, as "
                      "`metricsUtilization.prometheus.tokenFile`")
_IGNORED: Final[Mapping[str, str]] = {
    "metricsCollector": "a plugin whose arguments name KubernetesMetrics reads NodeMetrics and PodMetrics anyway",
}


@dataclass(frozen=True, slots=True)
class KubernetesPolicy:
    """A valid policy; `warnings` are about fields of the file without effect."""

    profiles: tuple[DeschedulerProfileSpec, ...]
    limits: CycleLimits
    node_selector: Mapping[str, Any] | None
    plain: Mapping[str, Any]
    warnings: tuple[Problem, ...]


def read_policy(node: YamlNode) -> KubernetesPolicy:
    """Return the policy of a document of this kind and version that is valid against its schema.

    Raises:
        PolicyError: with all other problems, each with its place.
    """
    problems = list(_faults(node))
    if problems:
        raise PolicyError(problems)
    content = to_plain(node)
    written = items_at(node, "profiles")
    return KubernetesPolicy(
        profiles=tuple(
            _profile(each or {}, written[index] if written else None, content)
            for index, each in enumerate(content.get("profiles") or [{}])
        ),
        limits=CycleLimits(
            content.get("maxNoOfPodsToEvictPerNode"), content.get("maxNoOfPodsToEvictPerNamespace"),
            content.get("maxNoOfPodsToEvictTotal"),
        ),
        node_selector=parse_selector(content["nodeSelector"]) if content.get("nodeSelector") else None,
        plain=content,
        warnings=tuple(_warnings(node)),
    )


def _profile(profile: Mapping[str, Any], node: YamlNode | None, policy: Mapping[str, Any]) -> DeschedulerProfileSpec:
    plugins = profile.get("plugins") or {}
    points = {name: (plugins.get(name) or {}) for name in ("deschedule", "balance", "filter", "preevictionfilter")}
    enabled = {name: tuple(of.get("enabled") or ()) for name, of in points.items()}
    filters = (*enabled["filter"], *(name for name in enabled["preevictionfilter"] if name not in enabled["filter"]))
    configs = {each["name"]: each.get("args") or {} for each in profile.get("pluginConfig") or ()}
    url = _prometheus_url(policy)
    configs = {name: _with_server(args, url) for name, args in configs.items()}
    configs[EVICTOR] = _with_threshold(configs.get(EVICTOR) or {})
    return DeschedulerProfileSpec(
        profile.get("name") or DEFAULT_NAME, deschedule=enabled["deschedule"], balance=enabled["balance"],
        evict=(EVICTOR,), filter=filters if EVICTOR in filters else (EVICTOR, *filters),
        disabled=frozenset(name for of in points.values() for name in of.get("disabled") or ()),
        args=configs, configured=tuple(configs), grace_period_s=policy.get("gracePeriodSeconds"),
        reports_failures=bool(policy.get("evictionFailureEventNotification")), written=dict(written_args(node)),
        places={
            ("filter" if point == "preevictionfilter" else point, name): span
            for (point, name), span in places_of_plugins(node)
        },
    )


def _prometheus_url(policy: Mapping[str, Any]) -> str:
    providers = policy.get("metricsProviders") or ()
    return next((each["prometheus"]["url"] for each in providers if each.get("source") == _PROMETHEUS), "")


def _with_server(args: Mapping[str, Any], url: str) -> Mapping[str, Any]:
    """Return arguments whose query names its server, unless they name one."""
    metrics = args.get("metricsUtilization")
    if not url or not isinstance(metrics, Mapping):
        return args
    prometheus = metrics.get("prometheus")
    if not isinstance(prometheus, Mapping) or prometheus.get("url"):
        return args
    return {**args, "metricsUtilization": {**metrics, "prometheus": {**prometheus, "url": url}}}


def _with_threshold(args: Mapping[str, Any]) -> dict[str, Any]:
    threshold = args.get("priorityThreshold") or {}
    if threshold.get("value") is not None or threshold.get("name"):
        return dict(args)
    return {**args, "priorityThreshold": {"value": SYSTEM_CRITICAL}}


# Faults that the schema cannot say


def _faults(node: YamlNode) -> Iterator[Problem]:
    selector = node.at("nodeSelector")
    if selector is not None and selector.scalar:
        fault = _selector_fault(str(selector.scalar))
        if fault:
            yield _problem(f"nodeSelector: {fault}", selector)
    profiles = items_at(node, "profiles")
    names: Counter[str] = Counter()
    for index, profile in enumerate(profiles):
        name = profile.at("name")
        text = str(name.scalar or "") if name is not None else ""
        if not text and len(profiles) > 1:
            yield _problem(f"profiles[{index}].name: Required value: each of several profiles needs a name", profile)
        elif text in names:
            yield _problem(f"profiles[{index}].name: Duplicate value: `{text}` names an earlier profile too", profile)
        names[text] += 1
        yield from _profile_faults(profile, f"profiles[{index}]")
    yield from _provider_faults(node)


def _selector_fault(text: str) -> str:
    """Return the fault of a selector as text; empty for none."""
    try:
        parsed = parse_selector(text)
    except ValueError as error:
        return str(error)
    # A LabelSelector has no comparisons of numbers.
    plain = [each for each in parsed.get("matchExpressions") or () if each["operator"] not in ("Gt", "Lt")]
    return next(selector_faults({"matchExpressions": plain}), "")


def _profile_faults(profile: YamlNode, path: str) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, config in enumerate(items_at(profile, "pluginConfig")):
        name = config.at("name")
        text = str(name.scalar) if name is not None else ""
        if text in seen:
            yield _problem(f"{path}.pluginConfig[{index}]: Duplicate value: `{text}` is configured twice", config)
        seen.add(text)


def _provider_faults(node: YamlNode) -> Iterator[Problem]:
    """Yield the faults of metrics providers, in the words of Kubernetes' descheduler."""
    seen: set[str] = set()
    providers = items_at(node, "metricsProviders")
    for provider in providers:
        source = provider.at("source")
        name = str(source.scalar) if source is not None else ""
        if name in seen:
            yield _problem(
                f'metric provider "{name}" is already configured, each source can be configured only once', provider)
        seen.add(name)
        prometheus = provider.at("prometheus")
        if name != _PROMETHEUS:
            continue
        if prometheus is None or not prometheus.fields:
            yield _problem("prometheus configuration is required when prometheus source is enabled", provider)
            continue
        url, token = prometheus.at("url"), prometheus.at("authToken")
        if url is None or not url.scalar:
            yield _problem("prometheus URL is required when prometheus is enabled", prometheus)
        if token is not None and not (token.at("secretReference") or token).fields:
            yield _problem("prometheus authToken secret is expected to be set when authToken field is", token)
    collector = node.at("metricsCollector", "enabled")
    if providers and collector is not None and collector.scalar is True:
        yield _problem("it is not allowed to combine metrics provider when metrics collector is enabled", collector)


def _problem(message: str, node: YamlNode) -> Problem:
    return Problem(message, node.place, code="configuration")


# Fields without effect


def _warnings(node: YamlNode) -> Iterator[Problem]:
    yield from ignored(node, _IGNORED)
    for index, provider in enumerate(items_at(node, "metricsProviders")):
        source = provider.at("source")
        if source is not None and source.scalar == _PROMETHEUS:
            yield from ignored(provider.at("prometheus") or provider, {"authToken": _NO_SECRETS},
                               f"metricsProviders[{index}].prometheus.")
        else:
            yield from ignored(provider, {"source": _IGNORED["metricsCollector"]}, f"metricsProviders[{index}].")
    for index, profile in enumerate(items_at(node, "profiles")):
        plugins = profile.at("plugins")
        if plugins is not None:
            yield from ignored(plugins, dict.fromkeys(("presort", "sort"), _NO_SORT), f"profiles[{index}].plugins.")
