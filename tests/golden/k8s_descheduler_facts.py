"""Facts of recorded descheduler runs beside evictions: classes of nodes, refusals, failures, samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from koordpolicy.builtin_plugins.descheduler.default_evictor.plugin import DefaultEvictor
from koordpolicy.builtin_plugins.descheduler.low_node_utilization.plugin import LowNodeUtilization
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.metrics import nanoseconds
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.descheduler.profile import DeschedulerProfileSpec
from koordpolicy.engine.descheduler.results import CycleResult
from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Plugin

Json = Mapping[str, Any]

SAMPLES: Final = "PrometheusSamples"
_BAD_ANSWERS: Final = {
    "noinstance": "the collected metrics sample is missing 'instance' key",
    "scalar": 'expected query results to be of type "vector", got "scalar" instead',
}


def with_samples(plugins: Iterable[Plugin], objects: Iterable[Json]) -> Sequence[Plugin]:
    """Return the plugins; LowNodeUtilization queries the recorded samples, if there are some."""
    answer = next((each for each in objects if each["kind"] == SAMPLES), None)
    if answer is None:
        return tuple(plugins)

    def query(_: str) -> Mapping[str, float]:
        if answer["mode"] != "ok":
            raise ValueError(f"error getting node usage: {_BAD_ANSWERS[answer['mode']]}")
        samples: dict[str, float] = answer["samples"]
        return samples

    def sampled(plugin: Plugin) -> Plugin:
        if plugin.name != LowNodeUtilization.name:
            return plugin
        return Plugin(
            plugin.name, Framework.DESCHEDULER, (Point.BALANCE,), lambda args, _: LowNodeUtilization(args, query),
            origin="test", digest=plugin.name, enabled=False, check_args=plugin.check_args,
        )

    return tuple(map(sampled, plugins))


def failures(expect: Json, result: CycleResult) -> Iterator[str]:
    """Yield the differences of the plugins that failed as a whole."""
    wanted = [each["err"].partition("finished with error: ")[2] for each in expect.get("log") or ()
              if "failed with error" in str(each.get("msg", ""))]
    found = [each.message for each in result.failures]
    if len(found) != len(wanted) or not all(text in message for text, message in zip(wanted, found, strict=True)):
        yield f"failed: expected {wanted}, got {found}"


def node_classes(expect: Json, result: CycleResult) -> Iterator[str]:
    """Yield the nodes whose role is another one than their class in the utilization plugins of the binary."""
    notes = [note for note in result.node_notes if note.plugin in ("LowNodeUtilization", "HighNodeUtilization")]
    is_high = any(note.plugin == "HighNodeUtilization" for note in notes)
    under, over = ("source", "target") if is_high else ("target", "source")
    roles, known = {note.node: note.role for note in notes}, {"underutilized": under, "overutilized": over}
    for node, of in (expect.get("nodeClasses") or {}).items() if notes else ():
        role = known.get(of["category"])
        if roles.get(node) != role:
            yield f"node {node} is {of['category']}: expected the role {role}, got {roles.get(node)}"


def refusals(case: Json, specs: Sequence[DeschedulerProfileSpec], classes: Mapping[str, int]) -> Iterator[str]:
    """Call our DefaultEvictor for the pods that the binary's refused; compare the reasons, in their order.

    The binary calls it also for pods that are evicted already, which are terminating then.
    """
    if len(specs) != 1:
        return
    evictor = DefaultEvictor(specs[0].args["DefaultEvictor"])
    priorities = [{"kind": "PriorityClass", "metadata": {"name": name}, "value": value}
                  for name, value in classes.items()]
    objects = [each for each in case["objects"] if each["kind"] != SAMPLES]
    snapshot = Cluster([*objects, *priorities]).snapshot(nanoseconds(case["now"], "now"))
    evicted = {each["pod"] for each in case["expect"]["evicted"] or ()}
    calls: Mapping[str, Callable[..., Any]] = {
        "Filter": evictor.eviction_filter, "PreEvictionFilter": evictor.pre_eviction_filter,
    }
    for refused in case["expect"].get("refused") or ():
        if refused["pod"] in evicted:
            continue
        refusal = calls[refused["by"]](PodInfo.of(snapshot.objects("Pod")[refused["pod"]]), snapshot)
        found = None if refusal is None else refusal.message
        if found != _plain(refused["reason"]):
            yield f"{refused['pod']} is refused: expected {refused['reason']!r}, got {found!r}"


def _plain(reason: str) -> str:
    """Return a reason with durations as our messages write them, in place of a Go structure."""
    head, structure, tail = reason.partition("&Duration{Duration:")
    if not structure:
        return reason
    duration, _, rest = tail.partition(",} seconds")
    for unit in ("0s", "0m"):
        if duration.endswith(unit) and not duration.removesuffix(unit)[-1:].isdigit():
            duration = duration.removesuffix(unit)
    return f"{head}{duration}{rest}"
