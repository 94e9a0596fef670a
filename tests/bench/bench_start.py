"""The work of a live scheduler at its start for each running pod: reading the list in one pass, and applying it.

The pass splits, decodes, shares and checks. The list comes in pieces, as from a connection; the API server and the
network are left out. A pod is about 4 KiB of JSON, of 200 workloads, and read with the fields that Kubernetes' default
plugins read. Times are processor time; their sum is also divided by that of the calibration loop, measured between the
turns.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.client.list_parser import ListParser
from koordpolicy.engine.client.projection import PartPool, Projection
from koordpolicy.engine.client.resources import BY_KIND
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.kinds import IDENTITY, fields_read
from koordpolicy.engine.cluster.sources.changes import apply
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.scheduler.profiles import configuration
from koordpolicy.engine.scheduler.profiles.profile import all_reads_of
from koordpolicy.engine.source import Source

from .calibration import calibrate
from .descheduler_cluster import nodes, pods
from .figure import Figure

_NODES: Final = 500
_PODS: Final = 10_000
_TURNS: Final = 3
_PIECE: Final = 64 << 10
_CONFIGURATION: Final = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles: [{schedulerName: default-scheduler}]
"""
_BOUND: Final = 7.1
"""Half of what it was when it was first measured."""
_STEPS: Final[tuple[str, ...]] = ("read", "apply")
T = TypeVar("T")


def main() -> Iterator[Figure]:
    """Yield microseconds per pod by step, and the time of a thousand pods as a ratio to the calibration loop."""
    text, projection = _list_of_pods(), _projection()
    least: dict[str, float] = dict.fromkeys(_STEPS, float("inf"))
    loop = float("inf")
    for _ in range(_TURNS):
        gc.collect()
        gc.freeze()
        for step, seconds in _turn(text, projection).items():
            least[step] = min(least[step], seconds)
        loop = min(loop, *(_measured(calibrate)[1] for _ in range(5)))
    for step, seconds in least.items():
        yield Figure(f"start: {step}", seconds / _PODS * 1e6, "us/pod")
    yield Figure("start: 1,000 running pods / loop", sum(least.values()) * 1000 / _PODS / loop, "times", _BOUND)


def _turn(text: bytes, projection: Projection) -> dict[str, float]:
    cluster, pool, resource = Cluster(nodes(_NODES)), PartPool(), BY_KIND["Pod"]
    parser = ListParser(lambda text: pool.decode(text, projection, "Pod"))

    def read() -> list[tuple[dict[str, Any], bool]]:
        found = []
        for start in range(0, len(text), _PIECE):
            found += parser.feed(text[start : start + _PIECE])
        return [each.read for each in found + parser.close()]

    took: dict[str, float] = {}
    items = _timed("read", read, took)
    for item, _ in items:
        item["apiVersion"], item["kind"] = resource.api_version, resource.kind

    def applied() -> None:
        for item, is_sound in items:
            metadata = item["metadata"]
            apply(cluster, [(("Pod", f"{metadata['namespace']}/{metadata['name']}"), item)], are_sound=is_sound)

    _timed("apply", applied, took)
    assert len(cluster.bound_pods()) == _PODS
    return took


def _timed(step: str, work: Callable[[], T], took: dict[str, float]) -> T:
    result, took[step] = _measured(work)
    return result


def _measured(work: Callable[[], T]) -> tuple[T, float]:
    """Return a result and the processor time that it took, which other programs hardly change."""
    began = time.process_time()
    result = work()
    return result, time.process_time() - began


def _projection() -> Projection:
    registry = Registry.of(PLUGINS, generation=1)
    found = configuration.read(Source("scheduler.yaml", _CONFIGURATION), registry)
    fields = fields_read(all_reads_of(found.profiles, registry))["Pod"]
    return Projection(None if fields is None else fields | IDENTITY)


def _list_of_pods() -> bytes:
    items = []
    for number, pod in enumerate(pods(_NODES, _PODS)):
        fields = {"f:metadata": {f"f:{name}": {} for name in ("labels", "annotations", "ownerReferences")},
                  "f:spec": {f"f:field{each}": {"f:name": {}, "f:value": {}} for each in range(30)}}
        at = pod["metadata"]["creationTimestamp"]
        states = [{"type": each, "status": "True", "lastProbeTime": None, "lastTransitionTime": at}
                  for each in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")]
        items.append({**pod, "metadata": {
            **pod["metadata"], "generateName": "app-", "resourceVersion": str(1000 + number), "managedFields": [
                {"manager": each, "operation": "Update", "time": at, "fieldsType": "FieldsV1", "fieldsV1": fields}
                for each in ("kube-controller-manager", "kubelet")],
        }, "status": {**pod["status"], "conditions": states, "podIP": f"10.0.{number // 256}.{number % 256}"}})
    head = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": str(1000 + len(items))}}
    return json.dumps({**head, "items": items}, separators=(",", ":")).encode()
