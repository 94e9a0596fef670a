"""Golden cases of evictions by an unchanged Kubernetes descheduler, under its own policies.

Each case is a cluster and a `DeschedulerPolicy`, which is read as `--config` reads it. One cycle runs, once with
evictions and once dry. Evictions go to an API server of the tests that knows disruption budgets.

What differs from the recordings on purpose is left out:

- A plugin calls a filter only for pods that meet its own criteria, so that the pods refused here are some of those
  refused there.
- Faults of the format are in words of ours, and a plugin without arguments has defaults here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from koordpolicy.builtin_plugins.descheduler import PLUGINS
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.metrics import nanoseconds
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.descheduler.background import may_move_in_background
from koordpolicy.engine.descheduler.config import DeschedulerConfiguration, read
from koordpolicy.engine.descheduler.framework import run_cycle
from koordpolicy.engine.descheduler.profile import DeschedulerProfileSpec, build_profiles
from koordpolicy.engine.descheduler.results import CycleResult, EvictionOutcome
from koordpolicy.engine.framework.descheduler import EvictionMode, EvictionResult, EvictOptions
from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Plugin, Registry
from koordpolicy.engine.kubernetes.selectors import matches_labels
from koordpolicy.engine.source import PolicyError, Source

from .k8s_descheduler_facts import SAMPLES, failures, node_classes, refusals, with_samples
from .result import Result

SUITE: Final = "k8s_descheduler_runs"
_SERVER: Final = "ApiServer"
_CLASSES: Final = {
    "low": 100, "mid": 1000, "high": 100_000, "top": 1_000_000, "system-cluster-critical": 2_000_000_000,
    "system-node-critical": 2_000_001_000,
}
_OURS_ALONE: Final = ("unable to find ",)
"""Faults that are none here: a plugin without arguments has defaults."""
_SORTS: Final = frozenset({"RemovePodsHavingTooManyRestarts", "RemovePodsViolatingInterPodAntiAffinity"})
"""Plugins that sort the pods of a node."""
_OUR_WORDS: Final = ("operator", "decod", "unmarshal", "not registered", "non-existing plugins", "unable to initialize")
"""Faults that are compared without the words, as ours come from the schema or the profile."""

Json = Mapping[str, Any]


def run(path: Path, *, full: bool = False) -> Iterator[Result]:
    """Yield the result of every run and every invalid policy of the file."""
    content = json.loads(path.read_bytes())
    for case in content["cases"]:
        yield _result(case["id"], lambda case=case: _differences(case))
    for case in content.get("invalid") or ():
        error = case["error"]
        if error and not any(each in error for each in _OURS_ALONE):
            yield _result(f"invalid/{case['id']}", lambda case=case: _refusal(case))


def _result(name: str, differences: Any) -> Result:
    try:
        found = list(differences())
    except PolicyError as error:
        found = [each.message for each in error.problems]
    except Exception as error:  # one case must not hide the others
        found = [f"stopped by {type(error).__name__}: {error}"]
    return Result(SUITE, name, not found, "; ".join(found))


# Policies


def _specs(policy: str) -> list[DeschedulerProfileSpec]:
    """Return the profiles of a policy; their evictions go to the API server of the tests."""
    return [replace(each, evict=(_SERVER,)) for each in _read(policy).profiles]


def _read(policy: str) -> DeschedulerConfiguration:
    return read(Source("policy.yaml", policy))


# The API server


@dataclass(slots=True)
class _ApiServer:
    """Carries out evictions as the eviction subresource does."""

    budgets: Sequence[Json]
    evacuating: frozenset[str] = frozenset()
    """Pods of which a webhook refuses the eviction, as it moves them itself."""
    refused: list[str] = field(default_factory=list)
    used: Counter[str] = field(default_factory=Counter)

    eviction_modes: frozenset[EvictionMode] = frozenset()

    def evict_with_options(self, pod: PodInfo, _: EvictOptions) -> EvictionResult:
        if pod.key in self.evacuating:
            if may_move_in_background(pod):
                return EvictionResult.REQUESTED
        elif self._allowed(pod):
            return EvictionResult.EVICTED
        self.refused.append(pod.key)
        return EvictionResult.FAILED

    def _allowed(self, pod: PodInfo) -> bool:
        if (pod.object.get("status") or {}).get("phase") in ("Succeeded", "Failed", "Pending"):
            return True
        of_pod = [each for each in self.budgets if each["metadata"]["namespace"] == pod.namespace and matches_labels(
            each["spec"].get("selector"), pod.object["metadata"].get("labels") or {}, absent=False)]
        if len(of_pod) != 1:
            return not of_pod
        (budget,) = of_pod
        key, status = f"{pod.namespace}/{budget['metadata']['name']}", budget.get("status") or {}
        if not _is_ready(pod) and status["currentHealthy"] >= status["desiredHealthy"] > 0:
            return True
        if self.used[key] >= status["disruptionsAllowed"]:
            return False
        self.used[key] += 1
        return True


def _is_ready(pod: PodInfo) -> bool:
    conditions = (pod.object.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


# Runs


def _cycle(case: Json, *, dry_run: bool) -> tuple[CycleResult, _ApiServer]:
    classes = [{"kind": "PriorityClass", "metadata": {"name": name}, "value": value}
               for name, value in _CLASSES.items()]
    objects = [each for each in case["objects"] if each["kind"] != SAMPLES]
    server = _ApiServer(
        [each for each in objects if each["kind"] == "PodDisruptionBudget"],
        frozenset((case.get("note") or "").partition("answers 429: ")[2].split(", ")),
    )
    plugin = Plugin(_SERVER, Framework.DESCHEDULER, (Point.EVICTION_FILTER,), lambda *_: server, origin="test",
                    digest=_SERVER, enabled=False)
    policy = _read(json.dumps(case["policy"]))
    registry = Registry.of([*with_samples(PLUGINS, case["objects"]), plugin], generation=1)
    specs = [replace(each, evict=(_SERVER,)) for each in policy.profiles]
    profiles = build_profiles(specs, registry, dry_run=False)
    result = run_cycle(
        profiles, Cluster([*objects, *classes]).snapshot(nanoseconds(case["now"], "now")), limits=policy.limits,
        dry_run=dry_run, node_selector=policy.node_selector,
    )
    return result, server


def _differences(case: Json) -> Iterator[str]:
    expect = case["expect"]
    result, server = _cycle(case, dry_run=case.get("mode") == "dry-run")
    yield from failures(expect, result)
    yield from node_classes(expect, result)
    yield from refusals(case, _specs(json.dumps(case["policy"])), _CLASSES)
    evicted = list(result.evicted)
    if expect["evicted"] is None:
        yield from _unstable(evicted, expect["unstable"], case)
    else:
        found = [(each.pod, each.node, each.decision.plugin) for each in evicted]
        wanted = [(each["pod"], each["node"], each["plugin"]) for each in expect["evicted"]]
        yield from _set_difference("evicted", {each[0] for each in found}, {each[0] for each in wanted})
        if sorted(found) != sorted(wanted):
            yield "node or plugin of an eviction differs"
        elif expect["stableOrder"]:
            yield from _order(case, found, wanted)
    yield from _refused(result, expect)
    if expect.get("evictionErrorsStable"):
        wanted_errors = {each["pod"] for each in expect["evictionErrors"]}
        yield from _set_difference("eviction errors", set(server.refused), wanted_errors)
    yield from _dry(case)


def _set_difference(what: str, found: set[str], wanted: set[str]) -> Iterator[str]:
    if found != wanted:
        yield f"{what}: lacks {sorted(wanted - found)}, has {sorted(found - wanted)}"


def _order(case: Json, found: Sequence[tuple[str, str, str]], wanted: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    """Yield the differences of the order, as far as the plugins have one: nodes come as the binary's cache lists them,
    and equals as its sort leaves them.
    """
    created = {_key(each): each["metadata"]["creationTimestamp"] for each in case["objects"] if each["kind"] == "Pod"}

    def ordered(evictions: Sequence[tuple[str, str, str]]) -> dict[str, list[str]]:
        of: dict[str, list[str]] = {}
        for pod, node, plugin in evictions:
            if plugin == "PodLifeTime":
                of.setdefault(plugin, []).append(created[pod])
            elif plugin in _SORTS:
                of.setdefault(f"{plugin} on {node}", []).append(pod)
        return of

    ours, theirs = ordered(found), ordered(wanted)
    for key, wanted_order in theirs.items():
        if ours[key] != wanted_order:
            yield f"order of {key}: expected {wanted_order}, got {ours[key]}"


def _refused(result: CycleResult, expect: Json) -> Iterator[str]:
    if not expect["refusedComplete"]:
        return
    wanted = {each["pod"] for each in expect["refused"]}
    found = {each.pod for each in result.staying
             if each.decision.stopped_by == "DefaultEvictor" and each.decision.stopped_rule != "noEvictionPolicy"}
    if found - wanted:
        yield f"refused: has {sorted(found - wanted)}"


def _dry(case: Json) -> Iterator[str]:
    dry = case["expect"].get("dryRun")
    if dry is None or case.get("mode") == "dry-run":
        return
    wanted = [each["pod"] for each in case["expect"]["evicted"]] if dry == "same" else dry.get("evicted")
    if wanted is not None and case["expect"]["evicted"] is not None:
        found = {each.pod for each in _cycle(case, dry_run=True)[0].evicted}
        yield from _set_difference("dry run", found, set(wanted))


def _unstable(evicted: Sequence[EvictionOutcome], wanted: Json, case: Json) -> Iterator[str]:
    """Yield the differences from what all runs did, of a case whose runs differed.

    A count that varied over nodes and owners may be outside of what eleven runs showed; the total may not.
    """
    lacking = {each["pod"] for each in wanted["always"]} - {each.pod for each in evicted}
    if lacking:
        yield f"evicted: lacks {sorted(lacking)}"
    pods = {_key(each): each for each in case["objects"] if each["kind"] == "Pod"}
    owners = {key: _owner(each) for key, each in pods.items()}
    counts = {
        "perNode": Counter(each.node for each in evicted),
        "perNamespace": Counter(each.pod.partition("/")[0] for each in evicted),
        "perOwner": Counter(owners[each.pod] for each in evicted),
        "perOwnerNode": Counter(f"{owners[each.pod]}@{each.node}" for each in evicted),
    }
    if not _within(len(evicted), wanted["total"]):
        yield f"total: expected {wanted['total']}, got {len(evicted)}"
    for name, found in counts.items():
        for key, number in (wanted.get(name) or {}).items():
            if isinstance(number, int) and found[key] != number:
                yield f"{name}: expected {number} of {key}, got {found[key]}"


def _owner(pod: Json) -> str:
    """Return the first owner as the recordings write it."""
    owner = next(iter(pod["metadata"].get("ownerReferences") or ()), None)
    return f"{pod['metadata']['namespace']}/{'-' if owner is None else '{kind}/{name}'.format_map(owner)}"


def _within(found: int, wanted: int | Mapping[str, int]) -> bool:
    return found == wanted if isinstance(wanted, int) else wanted["min"] <= found <= wanted["max"]


def _key(item: Json) -> str:
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"


# Invalid policies


def _refusal(case: Json) -> Iterator[str]:
    wanted = case["error"].partition(": ")[2] if case["error"].startswith("in profile") else case["error"]
    registry = Registry.of([*PLUGINS, Plugin(_SERVER, Framework.DESCHEDULER, (), lambda *_: _ApiServer(()),
                                             origin="test", digest=_SERVER, enabled=False)], generation=1)
    try:
        build_profiles(_specs(case["policy"]), registry, dry_run=False)
    except PolicyError as error:
        text = "; ".join(each.message for each in error.problems)
        built = "does not exist" not in text or "non-existing" in wanted or "not registered" in wanted
        words = any(each in case["error"] for each in _OUR_WORDS) or wanted in text
        if not built or not words:
            yield f"expected {wanted!r}, got {text!r}"
    else:
        yield f"accepted; expected {wanted!r}"
