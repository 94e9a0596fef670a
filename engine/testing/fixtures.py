"""Fixtures to API objects, and objects to the cluster of a case.

A fixture has only the relevant fields; the others are filled in here. A mistake (an unknown node, a key that the API
does not have) is an error, because a case without an effect must not pass.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from koordpolicy.engine.cel.values.types import Type
from koordpolicy.engine.cel.values.values import Timestamp
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.sources import files
from koordpolicy.engine.documents import Fixtures, parse_duration
from koordpolicy.engine.documents.loader import is_inside
from koordpolicy.engine.explanation import shortened
from koordpolicy.engine.kubernetes import types as kubernetes_types
from koordpolicy.engine.kubernetes.vocabulary import CPU_TOPOLOGY_ANNOTATION, DEFAULT_PRIORITIES, QOS_CLASS_LABEL
from koordpolicy.engine.source import PolicyError, did_you_mean

DEFAULT_NODE: Final = {"cpu": "8", "memory": "32Gi", "pods": "110"}
DEFAULT_NAMESPACE: Final = "default"
_ZONE: Final = "topology.kubernetes.io/zone"
_GPU: Final = "nvidia.com/gpu"
_AGE: Final = "1h"
_STATISTICS: Final = ("avg", "p50", "p90", "p95", "p99")
_USAGE_AGE: Final = "10s"
_SYSTEM_PRIORITIES: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_API_VERSIONS: Final = {
    "NodeMetric": "slo.koordinator.sh/v1alpha1", "NodeResourceTopology": "topology.node.k8s.io/v1alpha1",
}
_CONTROLLERS: Final = {"Job": "batch/v1", "CronJob": "batch/v1"}


class FixtureError(Exception):
    """An invalid or unknown fixture; the text is shown to the user.

    `path` leads to its place in the PolicyTest; without one it is the case's.
    """

    def __init__(self, message: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.path = path


def merged(base: Any, patch: Any) -> Any:
    """Return data with a merge patch applied (RFC 7396): mappings are merged, null deletes, other values replace."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(base) if isinstance(base, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def composed(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a fixture with another one merged over it. `object` is itself a patch: null in it is preserved."""
    whole: dict[str, Any] = merged(base, {key: value for key, value in patch.items() if key != "object"})
    below, above = base.get("object"), patch.get("object")
    if isinstance(above, Mapping):
        whole["object"] = _both(below, above) if isinstance(below, Mapping) else above
    return whole


def _both(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return one merge patch with the effect of two that are applied in order."""
    result = dict(first)
    for key, value in second.items():
        known = result.get(key)
        both = isinstance(value, Mapping) and isinstance(known, Mapping)
        result[key] = _both(known, value) if both else value  # type: ignore[arg-type]
    return result


def unknown(what: str, name: str, known: Mapping[str, object] | frozenset[str] | tuple[str, ...]) -> FixtureError:
    """Return the error message about an unknown name."""
    hint = did_you_mean(name, known) or (
        "there are " + ", ".join(f"`{each}`" for each in sorted(known)[:8]) if known else "there are none"
    )
    return FixtureError(f"there is no {what} `{name}`: {hint}")


@dataclass(frozen=True, slots=True)
class World:
    """The world of a case: a cluster at one time, and the fixture of each object."""

    cluster: Cluster
    objects: tuple[Mapping[str, Any], ...]
    names: Mapping[str, str]
    """The fixtures' names by the pods' keys."""
    now: int

    def pod(self, name: str) -> PodInfo:
        """Return a pod by the name of its fixture or by its key; raise `FixtureError` if there is none."""
        for key, known in self.names.items():
            if name in (known, key):
                found = self.cluster.pod(key)
                if found is None:  # a finished pod is on no node, but cases may name it
                    found = PodInfo.of(self.cluster.objects("Pod")[key])
                return found
        raise unknown("pod", name, tuple(self.names.values()))

    def named(self, key: str) -> str:
        """Return a pod's name in cases, or its key."""
        return self.names.get(key, key)

    def node(self, name: str) -> int:
        """Return a node's row; raise `FixtureError` if there is none."""
        row = self.cluster.index.get(name)
        if row is None:
            raise unknown("node", name, tuple(self.cluster.names))
        return row


@dataclass(slots=True)
class Worlds:
    """The worlds of one suite; equal ones are built once."""

    fixtures: Fixtures
    directory: Path
    _built: dict[str, World] = field(default_factory=dict)
    _made: dict[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    """The objects of fixtures, by their content: most cases differ in one or two."""
    _read: tuple[Mapping[str, Any], ...] | None = None

    def world(
        self, now: int, overlay: Mapping[str, Mapping[str, Any]], nodes: tuple[str, ...] | None,
        extra: Mapping[str, Any] | None = None,
    ) -> World:
        """Return the world with a case's overlay, nodes, and (if it is on a node) its own pod; may be shared."""
        own = extra if extra is not None and extra.get("node") else None
        key = json.dumps([now, overlay, nodes, own], sort_keys=True)
        found = self._built.get(key)
        if found is None:
            found = self._built[key] = self._build(now, overlay, nodes, own)
        return found

    def pod_of(self, given: Mapping[str, Any], overlay: Mapping[str, Mapping[str, Any]], now: int) -> PodInfo:
        """Return the pod that the case itself describes."""
        pods = self._patched("pods", self.fixtures.pods, overlay)
        item = pod_object("pod", _resolved("pod", "pod", given, pods, ()), now)
        _check_keys(item)
        try:
            return PodInfo.of(item)
        except ValueError as error:
            raise FixtureError(f"the case's pod: {error}") from None

    def _patched(
        self, section: str, fixtures: Mapping[str, Mapping[str, Any]], overlay: Mapping[str, Mapping[str, Any]],
    ) -> dict[str, Mapping[str, Any]]:
        patches = overlay.get(section, {})
        for name in patches:
            if name not in fixtures:
                raise unknown(f"fixture under `{section}`", name, fixtures)
        found = {}
        for name, each in fixtures.items():
            if name not in patches:
                found[name] = each
            elif patches[name] is not None:
                found[name] = _both(each, patches[name])
        return found

    def _files(self) -> tuple[Mapping[str, Any], ...]:
        if self._read is None:
            found: list[Mapping[str, Any]] = []
            for number, file in enumerate(self.fixtures.files):
                path, written = self.directory / file, ("spec", "fixtures", "files", number)
                if not path.exists():
                    raise FixtureError(f"there is no file or directory `{file}` beside the suite", written)
                # A suite may come from a stranger, and name a file whose text a log must not show.
                if not is_inside(path, self.directory) and not is_inside(path, Path.cwd()):
                    raise FixtureError(f"`{file}` is neither below the suite's directory nor below the working "
                                       "directory", written)
                try:
                    found += files.load(path)
                except PolicyError as error:
                    first, *others = error.problems
                    place = f"{first.span}: " if first.span is not None else ""
                    more = f", and {len(others)} more" if others else ""
                    raise FixtureError(f"the file `{file}` cannot be used: {place}{first.message}{more}",
                                       written) from None
            self._read = tuple(found)
        return self._read

    def _objects(
        self, made_of: list[Any], make: Callable[[], Iterable[Mapping[str, Any]]],
    ) -> tuple[Mapping[str, Any], ...]:
        """Return the checked objects of a fixture; equal fixtures share them."""
        key = json.dumps(made_of, sort_keys=True)
        if key not in self._made:
            found = tuple(make())
            for item in found:
                _check_keys(item)
            self._made[key] = found
        return self._made[key]

    def _build(
        self, now: int, overlay: Mapping[str, Mapping[str, Any]], chosen: tuple[str, ...] | None,
        own: Mapping[str, Any] | None,
    ) -> World:
        node_fixtures = self._patched("nodes", self.fixtures.nodes, overlay)
        pod_fixtures = self._patched("pods", self.fixtures.pods, overlay)
        given = dict(_numbered("node", node_fixtures))
        pods = dict(_numbered("pod", pod_fixtures))
        if own is not None:
            pods["pod"] = _resolved("pod", "pod", own, pod_fixtures, ())
        others = [*self._files(), *self.fixtures.objects]
        for item in others:
            _check_name(item)
        known = (*given, *(each["metadata"]["name"] for each in others if each.get("kind") == "Node"))
        for name in chosen or ():
            if name not in known:
                raise unknown("node", name, known)
        objects: list[Mapping[str, Any]] = []
        names: dict[str, str] = {}
        usages: dict[str, list[dict[str, Any]]] = {}
        for name, given_pod in pods.items():
            node = given_pod.get("node")
            if node and node not in known:
                raise FixtureError(f"the pod `{name}`: {unknown('node', node, known)}")
            if node and chosen is not None and node not in chosen:
                continue
            make = functools.partial(_pod_objects, name, given_pod, now)
            (pod,) = self._objects(["a pod", name, given_pod, now], make)
            key = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
            names[key] = name
            objects.append(pod)
            if given_pod.get("usage"):
                if not node:
                    raise FixtureError(f"the pod `{name}` has a usage and is on no node")
                metadata = pod["metadata"]
                usages.setdefault(node, []).append({
                    "namespace": metadata["namespace"], "name": metadata["name"],
                    "podUsage": {"resources": _amounts(given_pod["usage"])},
                })
        for name, each in given.items():
            if chosen is None or name in chosen:
                of_pods = usages.pop(name, [])
                objects += self._objects(
                    [name, each, of_pods, now], functools.partial(_node_objects, name, each, of_pods, now),
                )
        if usages:
            node, of_pods = next(iter(usages.items()))
            raise FixtureError(f"the pod `{of_pods[0]['name']}` has a usage, and its node `{node}` is not a fixture")
        for item in others:
            if item.get("kind") == "Node" and chosen is not None and item["metadata"]["name"] not in chosen:
                continue
            if item.get("kind") == "Pod":
                metadata = item["metadata"]
                key = f"{metadata.get('namespace') or DEFAULT_NAMESPACE}/{metadata['name']}"
                names.setdefault(key, key.removeprefix(f"{DEFAULT_NAMESPACE}/"))
            _check_keys(item)
            objects.append(item)
        cluster = Cluster()
        problems = cluster.upsert_all(objects)
        if problems:
            raise FixtureError("; ".join(problem.message for problem in problems))
        return World(cluster, tuple(objects), names, now)


def _numbered(what: str, fixtures: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, each in fixtures.items():
        whole = _resolved(what, name, each, fixtures, ())
        count = each.get("count")
        if count is None:
            yield name, whole
        else:
            node = str(whole.get("node") or "")
            for number in range(count):
                own = {**whole, "node": node.replace("*", str(number))} if "*" in node else whole
                yield f"{name}-{number}", own


def _resolved(
    what: str, name: str, given: Mapping[str, Any], fixtures: Mapping[str, Mapping[str, Any]], above: tuple[str, ...],
) -> dict[str, Any]:
    """Return a fixture merged over its base; `count` is not inherited."""
    base = given.get("from")
    if base is None:
        return composed({}, given)
    if base not in fixtures:
        raise FixtureError(f"the {what} `{name}` has an unknown base: {unknown(what, base, fixtures)}")
    if base in above:
        raise FixtureError(f"the {what} `{name}` is based on itself: {' -> '.join((*above, base))}")
    below = _resolved(what, base, fixtures[base], fixtures, (*above, base))
    below.pop("count", None)
    return composed(below, {key: value for key, value in given.items() if key != "from"})


def _amounts(given: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(amount) for name, amount in given.items()}


def _moment(now: int, age: str) -> str:
    return str(Timestamp(now - parse_duration(age)))


def pod_object(name: str, given: Mapping[str, Any], now: int) -> dict[str, Any]:
    """Return the pod of a fixture as the API server would serve it."""
    namespace, _, own_name = name.rpartition("/")
    labels = dict(given.get("labels") or {})
    if given.get("qosClass"):
        labels[QOS_CLASS_LABEL] = given["qosClass"]
    requests = _amounts(given.get("requests") or {})
    requests |= {key: str(given[key]) for key in ("cpu", "memory") if given.get(key) is not None}
    limits = _amounts(given.get("limits") or {})
    containers: list[dict[str, Any]] = [
        {"name": f"container-{number}", "image": image} for number, image in enumerate(given.get("images") or ("app",))
    ]
    containers[0]["name"] = "main"
    resources = {key: value for key, value in (("requests", {**limits, **requests}), ("limits", limits)) if value}
    if resources:
        containers[0]["resources"] = resources
    metadata: dict[str, Any] = {
        "name": own_name, "namespace": namespace or DEFAULT_NAMESPACE, "uid": name,
        "creationTimestamp": _moment(now, given.get("age") or _AGE),
    }
    if labels:
        metadata["labels"] = labels
    if given.get("annotations"):
        metadata["annotations"] = dict(given["annotations"])
    if given.get("owner"):
        kind, _, owner = given["owner"].partition("/")
        metadata["ownerReferences"] = [{
            "apiVersion": _CONTROLLERS.get(kind, "apps/v1"), "kind": kind, "name": owner or "owner",
            "uid": given["owner"], "controller": True,
        }]
    spec: dict[str, Any] = {"containers": containers}
    if given.get("node"):
        spec["nodeName"] = given["node"]
    priority_class = given.get("priorityClass")
    if priority_class:
        spec["priorityClassName"] = priority_class
        priority = DEFAULT_PRIORITIES.get(priority_class, _SYSTEM_PRIORITIES.get(priority_class))
        if priority is not None:
            spec["priority"] = priority
    if given.get("priority") is not None:
        spec["priority"] = given["priority"]
    if given.get("tolerations"):
        spec["tolerations"] = given["tolerations"]
    item = {
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec,
        "status": {"phase": given.get("phase") or ("Running" if given.get("node") else "Pending")},
    }
    whole: dict[str, Any] = merged(item, given.get("object") or {})
    return whole


def _pod_objects(name: str, given: Mapping[str, Any], now: int) -> Iterator[Mapping[str, Any]]:
    yield pod_object(name, given, now)


def _node_objects(
    name: str, given: Mapping[str, Any], pods: list[dict[str, Any]], now: int,
) -> Iterator[Mapping[str, Any]]:
    amounts = _amounts({**DEFAULT_NODE, **{key: given[key] for key in DEFAULT_NODE if given.get(key) is not None}})
    amounts |= _amounts(given.get("allocatable") or {})
    if given.get("gpus"):
        amounts[_GPU] = str(given["gpus"])
    labels = {"kubernetes.io/hostname": name, **(given.get("labels") or {})}
    if given.get("zone"):
        labels[_ZONE] = given["zone"]
    metadata: dict[str, Any] = {"name": name, "labels": labels, "creationTimestamp": _moment(now, _AGE)}
    if given.get("annotations"):
        metadata["annotations"] = dict(given["annotations"])
    spec: dict[str, Any] = {}
    if given.get("unschedulable"):
        spec["unschedulable"] = True
    if given.get("taints"):
        spec["taints"] = [_taint(each) for each in given["taints"]]
    status: dict[str, Any] = {
        "allocatable": amounts, "capacity": dict(amounts), "conditions": [{"type": "Ready", "status": "True"}],
    }
    if given.get("images"):
        status["images"] = [{"names": [each], "sizeBytes": 100_000_000} for each in given["images"]]
    item = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": status}
    yield merged(item, given.get("object") or {})
    usage = given.get("usage")
    if usage is None and given.get("usageOver"):
        raise FixtureError(f"the node `{name}` has a `usageOver` and no `usage`")
    if usage is None and pods:
        raise FixtureError(f"the pod `{pods[0]['name']}` has a usage, and its node `{name}` has none")
    if usage is not None:
        of_node: dict[str, Any] = {"nodeUsage": {"resources": _amounts(usage)}}
        if given.get("usageOver"):
            of_node["aggregatedNodeUsages"] = [
                {"duration": _checked_duration(duration, name),
                 "usage": {key: {"resources": _amounts(of[key])} for key in _STATISTICS if key in of}}
                for duration, of in given["usageOver"].items()
            ]
        measured: dict[str, Any] = {
            "updateTime": _moment(now, given.get("usageAge") or _USAGE_AGE), "nodeMetric": of_node,
        }
        if pods:
            measured["podsMetric"] = pods
        yield {"apiVersion": _API_VERSIONS["NodeMetric"], "kind": "NodeMetric", "metadata": {"name": name},
               "status": measured}
    topology = given.get("topology")
    if topology is not None:
        yield {
            "apiVersion": _API_VERSIONS["NodeResourceTopology"], "kind": "NodeResourceTopology",
            "metadata": {"name": name, "annotations": {CPU_TOPOLOGY_ANNOTATION: json.dumps({
                "detail": list(_processors(topology)),
            })}},
        }


def _checked_duration(text: str, node: str) -> str:
    try:
        parse_duration(text)
    except ValueError as error:
        raise FixtureError(f"`usageOver` of the node `{node}`: {error}") from None
    return text


def _processors(topology: Mapping[str, int]) -> Iterator[dict[str, int]]:
    sockets, cores, threads = (topology.get(key, 1) for key in ("sockets", "cores", "threads"))
    for number in range(sockets * cores * threads):
        core = number // threads
        yield {"id": number, "core": core, "socket": core // cores, "node": core // cores}


def _taint(text: str) -> dict[str, str]:
    name, _, effect = text.rpartition(":")
    key, equals, value = name.partition("=")
    return {"key": key, **({"value": value} if equals else {}), "effect": effect}


# Keys that the API does not have

def _check_name(item: Mapping[str, Any]) -> None:
    """Raise `FixtureError` for an object without a name."""
    metadata = item.get("metadata")
    if not isinstance(metadata, Mapping) or not isinstance(metadata.get("name"), str) or not metadata["name"]:
        raise FixtureError(f"an object of the kind {shortened(str(item.get('kind')))} has no `metadata.name`")


def _check_keys(item: Mapping[str, Any]) -> None:
    """Raise `FixtureError` for an object without a name, or for a key that objects of this kind do not have.

    Such a key would have no effect.
    """
    _check_name(item)
    for group in ("kubernetes", "koordinator"):
        name = f"{group}.{item.get('kind')}"
        if name in kubernetes_types.load():
            _check_object(item, name, f"{item['kind']} `{item['metadata']['name']}`", "")


def _check_object(value: Any, name: str, owner: str, path: str) -> None:
    fields = kubernetes_types.load()[name].fields
    if not isinstance(value, Mapping) or not fields:
        return
    for key, below in value.items():
        declared = fields.get(key)
        if declared is None:
            if path == "" and key in ("apiVersion", "kind", "metadata"):
                continue
            hint = did_you_mean(key, fields) or "see the API's reference"
            raise FixtureError(f"{owner} has no field `{path}{key}`: {hint}")
        _check_value(below, declared.type, owner, f"{path}{key}")


def _check_value(value: Any, declared: Type, owner: str, path: str) -> None:
    if declared.name == "list" and isinstance(value, list):
        for number, each in enumerate(value):
            _check_value(each, declared.parameters[0], owner, f"{path}[{number}]")
    elif declared.name == "map" and isinstance(value, Mapping):
        for key, each in value.items():
            _check_value(each, declared.parameters[1], owner, f"{path}.{key}")
    elif declared.name in kubernetes_types.load():
        _check_object(value, declared.name, owner, f"{path}.")
