"""Pods: the object of a pod with derived facts, as scheduling reads them."""

from __future__ import annotations

import marshal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

from koordpolicy.engine.kubernetes.objects import LARGEST_AMOUNT, check_object, json_kind
from koordpolicy.engine.kubernetes.quantity import Quantity
from koordpolicy.engine.kubernetes.vocabulary import GPU, GPU_CORE, GPU_MEMORY_RATIO, GPU_SHARED, WHOLE_GPUS, classes_of
from koordpolicy.engine.records import fast_init

_INT64_MAX: Final = 2**63 - 1
_MOST_DEVICES: Final = 1_000_000
WHOLE_DEVICE: Final = 1000
"""One device, in thousandths."""

SHARED_METADATA: Final = frozenset({
    "labels", "annotations", "namespace", "ownerReferences", "generateName", "finalizers",
})
"""Metadata that all pods of a controller share."""
_WITHOUT_REFERENCES: Final = 2
"""The version of the marshal format in which equal data are equal bytes, whichever parts of them are one object."""
NONZERO: Final[Mapping[str, int]] = {"cpu": 100, "memory": 200 * 1024 * 1024}
"""Amounts that scores assume of a container without requests: milli-cores, bytes (Kubernetes' defaults)."""

NONZERO_PLACES: Final[Mapping[str, int]] = {name: place for place, name in enumerate(NONZERO)}
_NO_EXCESS: Final = (0,) * len(NONZERO)
_ASSUMED: Final[Mapping[str, Quantity]] = {
    name: Quantity.parse(f"{amount}m" if name == "cpu" else str(amount)) for name, amount in NONZERO.items()
}
_NOTHING: Final[Mapping[str, Quantity]] = {}
_ZERO: Final = Quantity.parse("0")
_STATUSES: Final = ("containerStatuses", "initContainerStatuses")
_NO_STATUS: Final[Mapping[str, Any]] = {}
_RESIZE_PENDING: Final = "PodResizePending"
_INFEASIBLE: Final = "Infeasible"
_POD_LEVEL: Final = ("cpu", "memory")
_PERCENTS: Final = (GPU_CORE, GPU, GPU_MEMORY_RATIO)
_MILLI_ANNOTATION: Final = "alibabacloud.com/gpu-milli"
_COUNT_ANNOTATION: Final = "alibabacloud.com/gpu-count"
MODEL_ANNOTATION: Final = "alibabacloud.com/gpu-card-model"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")


class ResourceList(dict[str, int]):
    """Amounts by resource in canonical integers: cpu in milli-cores, all others in base units; an absent one is 0."""

    __slots__ = ()

    def __missing__(self, _: str) -> int:
        return 0

    def __repr__(self) -> str:
        return dict.__repr__(self)


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """The device request of a pod: how many, and how much of each.

    `share` is in thousandths of one device, 1..1000; `models` are the acceptable ones, empty for any.
    """

    type: str
    count: int
    share: int
    models: frozenset[str] = frozenset()
    fault: str = ""
    """The reason why no devices can be allocated to the request, or empty; count and share are then the nearest valid
    ones."""

    @property
    def total(self) -> int:
        """The whole request in thousandths."""
        return self.count * self.share


class _Shaped:
    """Base of `PodInfo` with what is cached about it, which are no fields, as they depend on the others."""

    __slots__ = ("_own_facts", "_shape", "_template")

    _shape: bytes
    _template: Any
    """Of `engine.descheduler.templates`."""
    _own_facts: Any
    """Of `engine.descheduler.own_facts`."""


@fast_init
@dataclass(frozen=True, slots=True, eq=False)
class PodInfo(_Shaped):
    """A pod with its derived facts. Equal only to itself: two versions of one pod share a key."""

    key: str
    """`namespace/name`."""
    namespace: str
    name: str
    uid: str
    object: Mapping[str, Any]
    """The API object."""
    requests: ResourceList
    """Effective requests by Kubernetes' rule: containers, sidecars, init containers, pod-level amounts, overhead.

    Of a pod on a node, containers and sidecars that were resized in place count the maximum of the amounts in the
    spec, allocated and actual; without the spec if the kubelet found the resize infeasible.
    """
    limits: ResourceList
    priority: int
    priority_band: str
    """koord-prod, koord-mid, koord-batch, koord-free, or empty."""
    qos_class: str
    """LSE, LSR, LS, BE, SYSTEM, or empty."""
    kubernetes_qos: str
    """Guaranteed, Burstable or BestEffort."""
    node_name: str
    gpu: DeviceRequest | None
    excess: tuple[int, ...]
    """The difference of `nonzero` and the requests."""

    @staticmethod
    def of(pod: Mapping[str, Any], *, is_sound: bool = False) -> PodInfo:
        """Read a pod object; one that `is_sound` passes `check_object`, and none of its parts ever changes.

        Raises:
            ValueError: something is missing or malformed; the message begins with the field's path.
        """
        if not isinstance(pod, Mapping):
            raise ValueError(f"a pod must be an object, not {json_kind(pod)}")  # noqa: TRY004 - one kind of complaint
        if not is_sound:
            check_object(pod, "Pod")
        metadata = mapping_at(pod, "metadata")
        name = metadata.get("name")  # with its type checked, as all fields below
        if not name:
            raise ValueError("`metadata.name` is missing")
        namespace = metadata.get("namespace") or "default"
        requests, limits, excess, priority, band, qos, kubernetes_qos, gpu = (
            _facts_of_parts(pod) if is_sound else _facts_of(pod))
        return PodInfo(
            f"{namespace}/{name}", namespace, name, metadata.get("uid") or "", pod, requests, limits, priority, band,
            qos, kubernetes_qos, pod["spec"].get("nodeName") or "", gpu, excess,
        )

    @property
    def nonzero(self) -> tuple[int, ...]:
        """Its requests of the resources of `NONZERO`, with these amounts for containers that have none.

        Of a pod with pod-level requests that applies only to a resource without any request in the pod (NodeInfo's
        NonZeroRequested).
        """
        requests = self.requests
        return tuple([requests[name] + more for name, more in zip(NONZERO, self.excess, strict=True)])

    def nonzero_requests(self) -> Mapping[str, int]:
        """Return the requests, with those of `nonzero`."""
        return {**self.requests, **dict(zip(NONZERO, self.nonzero, strict=True))} if any(self.excess) else self.requests

    def container_requests(self) -> Mapping[str, int]:
        """Return the requests of a pending pod's containers and overhead, with the amounts of `NONZERO`.

        As in the scorer of kube-scheduler's NodeResourcesFit, which reads no pod-level requests.
        """
        spec = self.object.get("spec") or {}
        if not _pod_level(spec, "requests"):
            return self.nonzero_requests()
        return _effective({**spec, "resources": None}, "requests", assumed=_ASSUMED)

    def on(self, node_name: str) -> PodInfo:
        """Return this pod, bound to a node (its object stays as it is)."""
        return PodInfo(
            self.key, self.namespace, self.name, self.uid, self.object, self.requests, self.limits, self.priority,
            self.priority_band, self.qos_class, self.kubernetes_qos, node_name, self.gpu, self.excess,
        )

    def like(self, pod: Mapping[str, Any], name: str, uid: str) -> PodInfo:
        """Return a pod of the same namespace and shape, whose object differs in name and UID only."""
        found = PodInfo(
            f"{self.namespace}/{name}", self.namespace, name, uid, pod, self.requests, self.limits, self.priority,
            self.priority_band, self.qos_class, self.kubernetes_qos, self.node_name, self.gpu, self.excess,
        )
        shape = self.shape()
        if shape is not None:
            object.__setattr__(found, "_shape", shape)
        return found

    def shape(self) -> bytes | None:
        """Return a key that is equal for all pods of one shape, as controllers make them; None if there is none.

        It includes the spec and the metadata that all pods of a controller share (labels, annotations, owners, but
        neither name nor uid), and of the status only the requests after a resize in place.
        """
        known: bytes | None = getattr(self, "_shape", None)
        if known is not None:
            return known
        metadata = self.object.get("metadata") or {}
        shared = [(key, metadata[key]) for key in metadata if key in SHARED_METADATA]
        try:
            found = marshal.dumps((
                self.namespace, self.node_name, self.priority, self.priority_band, self.qos_class, self.kubernetes_qos,
                tuple(self.requests.items()), tuple(self.limits.items()), self.excess, shared, self.object.get("spec"),
            ), _WITHOUT_REFERENCES)
        except ValueError:  # not plain data
            return None
        object.__setattr__(self, "_shape", found)
        return found

    def unbound(self) -> PodInfo:
        """Return this pod without a node, in its object too."""
        spec = {key: value for key, value in self.object["spec"].items() if key != "nodeName"}
        return PodInfo.of({**self.object, "spec": spec}) if self.node_name else self


class _Facts(NamedTuple):
    """The derived facts of a pod."""

    requests: ResourceList
    limits: ResourceList
    excess: tuple[int, ...]
    priority: int
    priority_band: str
    qos_class: str
    kubernetes_qos: str
    gpu: DeviceRequest | None


def _facts_of(pod: Mapping[str, Any]) -> _Facts:
    """Return the facts of a checked pod.

    Raises:
        ValueError: something is missing or malformed.
    """
    spec = mapping_at(pod, "spec")
    if not objects_at(spec, "containers", "spec"):
        raise ValueError("`spec.containers` is missing or empty: a pod has at least one container")
    status = mapping_at(pod, "status", optional=True)
    requests, limits, excess = _amounts_of(spec, status if text_at(spec, "nodeName", "spec") else {})
    annotations = mapping_at(mapping_at(pod, "metadata"), "annotations", "metadata", optional=True)
    _check_placement(spec)
    kubernetes_qos, qos, band = classes_of(pod)
    return _Facts(requests, limits, excess, spec.get("priority") or 0, band, qos, kubernetes_qos,
                  _gpu_request(requests, annotations))


_KNOWN_FACTS: Final[dict[tuple[object, ...], tuple[_Facts, tuple[object, ...]]]] = {}
"""By the identities of the parts that they depend on, the facts, and these parts: as long as they are held, nothing
else has their identities."""
_MOST_FACTS: Final = 4_096


def _facts_of_parts(pod: Mapping[str, Any]) -> _Facts:
    """Return `_facts_of` a pod of whose parts none ever changes, found once for pods that share them."""
    metadata, spec, status = pod["metadata"], pod.get("spec"), pod.get("status") or _NO_STATUS
    if not spec:
        return _facts_of(pod)
    in_spec, in_status = spec.get, status.get
    parts = (
        metadata.get("labels"), metadata.get("annotations"), in_spec("containers"), in_spec("initContainers"),
        in_spec("resources"), in_spec("overhead"), in_spec("affinity"), in_status("resources"),
        in_status("allocatedResources"), in_status("containerStatuses"), in_status("initContainerStatuses"),
    )
    reasons = [each.get("reason") for each in in_status("conditions") or () if each.get("type") == _RESIZE_PENDING]
    key = (*map(id, parts), in_spec("priority"), in_status("qosClass"), bool(in_spec("nodeName")), *reasons)
    known = _KNOWN_FACTS.get(key)
    if known is None:
        known = _facts_of(pod), parts
        if len(_KNOWN_FACTS) >= _MOST_FACTS:
            _KNOWN_FACTS.clear()
        _KNOWN_FACTS[key] = known
    return known[0]


def mapping_at(parent: Mapping[str, Any], field: str, path: str = "", *, optional: bool = False) -> Mapping[str, Any]:
    """Return an object field; an optional one that is absent or null reads as empty.

    Raises:
        ValueError: it is missing, or not an object; the message names `path` and field.
    """
    value = parent.get(field)
    if type(value) is dict or isinstance(value, Mapping):
        return value
    where = f"{path}.{field}" if path else field
    if value is None:
        if optional:
            return {}
        raise ValueError(f"`{where}` is missing")
    raise ValueError(f"`{where}` must be an object, not {json_kind(value)}")


def text_at(parent: Mapping[str, Any], field: str, path: str) -> str:
    """Return a string field, empty if it is absent or null.

    Raises:
        ValueError: it is not a string.
    """
    value = parent.get(field)
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    raise ValueError(f"`{path}.{field}` must be a string, not {json_kind(value)}")


def objects_at(parent: Mapping[str, Any], field: str, path: str) -> list[Mapping[str, Any]]:
    """Return a field that is a list of objects, empty where it is absent or null.

    Raises:
        ValueError: it is not a list, or something in it is not an object.
    """
    items = parent.get(field)
    if items is None:
        return []
    if not isinstance(items, list):
        raise ValueError(f"`{path}.{field}` must be a list, not {json_kind(items)}")  # noqa: TRY004 - one complaint
    for index, item in enumerate(items):
        if not isinstance(item, Mapping):
            raise ValueError(f"`{path}.{field}[{index}]` must be an object, not {json_kind(item)}")  # noqa: TRY004 - one complaint
    return items


def resource_list(parent: Mapping[str, Any], field: str, path: str) -> ResourceList:
    """Return the resource list at a field in canonical integers, rounded up; an absent one is empty.

    Raises:
        ValueError: it is not an object of quantities; the message names the resource's path.
    """
    amounts = parent.get(field)
    if not amounts and (amounts is None or isinstance(amounts, Mapping)):
        return ResourceList()
    return ResourceList({
        name: canonical_amount(name, quantity, f"{path}.{field}.{name}")
        for name, quantity in mapping_at(parent, field, path).items()
    })


def canonical_amount(name: str, quantity: object, path: str) -> int:
    """Return a resource's amount as an integer: cpu in milli-cores, all else in base units, rounded up.

    Amounts beyond `LARGEST_AMOUNT` count as that.

    Raises:
        ValueError: it is not a quantity, or does not fit 64 bits; the message begins with `path`.
    """
    if quantity.__class__ is str:
        amount = _amount_of_text(name == "cpu", quantity)
        if amount is not None:
            return amount
    return _canonical(name, _quantity(quantity, path), path)


@lru_cache(maxsize=65_536)
def _amount_of_text(cpu: bool, text: str) -> int | None:
    """Return the canonical amount, or None if it is invalid."""
    try:
        quantity = Quantity.parse(text)
    except ValueError:
        return None
    amount = quantity.milli if cpu else quantity.value
    return amount if -LARGEST_AMOUNT <= amount <= LARGEST_AMOUNT else None


def _quantity(value: object, path: str) -> Quantity:
    # The API server accepts numbers too and serves them as strings; dumps and tests write them.
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise ValueError(f"`{path}` must be a quantity, not {json_kind(value)}")  # noqa: TRY004 - one complaint
    try:
        return Quantity.parse(value)
    except ValueError as error:
        raise ValueError(f"`{path}`: {error}") from None


def _canonical(name: str, quantity: Quantity, path: str) -> int:
    amount = quantity.milli if name == "cpu" else quantity.value
    if not -_INT64_MAX <= amount <= _INT64_MAX:
        raise ValueError(f"`{path}`: the amount does not fit into 64 bits")
    return max(-LARGEST_AMOUNT, min(amount, LARGEST_AMOUNT))


def _amounts(container: Mapping[str, Any], which: str, path: str) -> Iterator[tuple[str, Quantity]]:
    resources = mapping_at(container, "resources", path, optional=True)
    for name, quantity in mapping_at(resources, which, f"{path}.resources", optional=True).items():
        where = f"{path}.resources.{which}.{name}"
        yield name, _amount(quantity, where)


def _amount(value: object, path: str) -> Quantity:
    amount = _quantity(value, path)
    if amount.sign < 0:
        raise ValueError(f"`{path}` is `{value}`: it must not be negative")
    return amount


def _add(total: dict[str, Quantity], amounts: Mapping[str, Quantity]) -> None:
    for name, quantity in amounts.items():
        known = total.get(name)
        total[name] = quantity if known is None else known + quantity


def _raise_to(total: dict[str, Quantity], amounts: Mapping[str, Quantity]) -> None:
    """Raise each resource to at least this amount."""
    for name, quantity in amounts.items():
        if name not in total or quantity > total[name]:
            total[name] = quantity


_Effective: TypeAlias = tuple[ResourceList, ResourceList, tuple[int, ...]]
"""Requests, limits and excess of a pod; shared by all pods with the same amounts."""
_EFFECTIVE: Final[dict[bytes, _Effective]] = {}
_MOST_EFFECTIVE: Final = 16_384


def _amounts_of(spec: Mapping[str, Any], status: Mapping[str, Any]) -> _Effective:
    """Return the effective amounts of a checked pod; `status` is empty for a pod without a node."""
    try:
        # What they depend on, and nothing that differs between the pods of a controller.
        key = marshal.dumps((
            [_amounts_read(each) for each in spec["containers"]],
            [_amounts_read(each) for each in spec.get("initContainers") or ()],
            spec.get("resources"), spec.get("overhead"), status.get("resources"), status.get("allocatedResources"),
            [_amounts_read(each) for field in _STATUSES for each in status.get(field) or ()],
            [each.get("reason") for each in status.get("conditions") or () if each.get("type") == _RESIZE_PENDING],
        ), _WITHOUT_REFERENCES)
    except (ValueError, AttributeError, TypeError):  # not plain data, or malformed, which is reported below
        return _new_amounts_of(spec, status)
    known = _EFFECTIVE.get(key)
    if known is None:
        known = _new_amounts_of(spec, status)
        if len(_EFFECTIVE) >= _MOST_EFFECTIVE:
            _EFFECTIVE.clear()
        _EFFECTIVE[key] = known
    return known


def _amounts_read(container: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the fields of a container, or of its status, that `_effective` reads."""
    get = container.get
    return get("name"), get("resources"), get("allocatedResources"), get("restartPolicy")


def _new_amounts_of(spec: Mapping[str, Any], status: Mapping[str, Any]) -> _Effective:
    resized = _Resized.of(status) if status else None
    requests, limits = _effective(spec, "requests", resized), _effective(spec, "limits", resized)
    return requests, limits, _excess(spec, requests, resized)


@dataclass(frozen=True, slots=True)
class _Resized:
    """The resources in the status of a pod on a node."""

    containers: Mapping[str, Mapping[str, Any]]
    """The statuses of containers with resources, by name."""
    pod: Mapping[str, Any]
    """The pod's status if it has pod-level resources; else empty."""
    infeasible: bool
    """True if the kubelet has refused the resize, so that the spec does not count."""

    @staticmethod
    def of(status: Mapping[str, Any]) -> _Resized | None:
        """Return it, or None if the status has no resources."""
        containers = {
            text_at(each, "name", "status"): each
            for field in _STATUSES if field in status
            for each in objects_at(status, field, "status") if each.get("resources") is not None
        }
        pod = status if status.get("resources") is not None else {}
        if not containers and not pod:
            return None
        pending = (each for each in objects_at(status, "conditions", "status") if each.get("type") == _RESIZE_PENDING)
        return _Resized(containers, pod, next(pending, {}).get("reason") == _INFEASIBLE)

    def container(
        self, container: Mapping[str, Any], amounts: Mapping[str, Quantity], which: str,
    ) -> Mapping[str, Quantity]:
        """Return the effective amounts of a container with `amounts` in its spec."""
        status = self.containers.get(container.get("name") or "")
        path = f"status.containerStatuses[{container.get('name')}]"
        return amounts if status is None else self._most(amounts, status, which, path)

    def level(self, amounts: Mapping[str, Quantity], which: str) -> Mapping[str, Quantity]:
        """Return the effective pod-level amounts of a pod with `amounts` in its spec, of these resources only."""
        if not self.pod:
            return amounts
        found = self._most(amounts, self.pod, which, "status")
        return {name: found.get(name, _ZERO) for name in amounts}

    def _most(
        self, amounts: Mapping[str, Quantity], status: Mapping[str, Any], which: str, path: str,
    ) -> Mapping[str, Quantity]:
        most = {} if self.infeasible else dict(amounts)
        _raise_to(most, dict(_amounts(status, which, path)))
        if which == "requests":
            allocated = mapping_at(status, "allocatedResources", path, optional=True)
            path = f"{path}.allocatedResources"
            _raise_to(most, {name: _amount(value, f"{path}.{name}") for name, value in allocated.items()})
        return most


def _effective(
    spec: Mapping[str, Any], which: str, resized: _Resized | None = None, assumed: Mapping[str, Quantity] = _NOTHING,
) -> ResourceList:
    """Return a pod's effective requests or limits (component-helpers' `PodRequests`, `PodLimits`).

    A container without an amount of a resource of `assumed` counts that amount.
    """

    def counted(container: Mapping[str, Any], path: str, *, stays: bool = True) -> dict[str, Quantity]:
        amounts = dict(_amounts(container, which, path))
        if resized is not None and stays:
            amounts = dict(resized.container(container, amounts, which))
        return {**assumed, **amounts} if assumed else amounts

    total: dict[str, Quantity] = {}
    for index, container in enumerate(spec["containers"]):
        _add(total, counted(container, f"spec.containers[{index}]"))
    sidecars: dict[str, Quantity] = {}
    peak: dict[str, Quantity] = {}
    for index, container in enumerate(objects_at(spec, "initContainers", "spec")):
        stays = container.get("restartPolicy") == "Always"
        amounts = counted(container, f"spec.initContainers[{index}]", stays=stays)
        if stays:
            _add(total, amounts)
            _add(sidecars, amounts)
            amounts = sidecars
        else:
            _add(amounts, sidecars)
        _raise_to(peak, amounts)
    _raise_to(total, peak)
    level = _pod_level(spec, which)
    if level:  # pod-level resources win over the sum of the containers
        total |= level if resized is None else resized.level(level, which)
    overhead = mapping_at(spec, "overhead", "spec", optional=True)
    for name, value in overhead.items():
        quantity = _quantity(value, f"spec.overhead.{name}")
        # A limit that is not set stays unset: overhead alone limits nothing.
        if which == "requests" or (name in total and total[name].sign):
            _add(total, {name: quantity})
    return ResourceList({
        name: _canonical(name, quantity, f"spec.containers[*].resources.{which}.{name}")
        for name, quantity in total.items()
    })


def _pod_level(spec: Mapping[str, Any], which: str) -> dict[str, Quantity]:
    """Return the effective pod-level amounts of a spec."""
    return {
        name: quantity for name, quantity in _amounts(spec, which, "spec")
        if name in _POD_LEVEL or name.startswith("hugepages-")
    }


def _excess(spec: Mapping[str, Any], requests: ResourceList, resized: _Resized | None) -> tuple[int, ...]:
    assumed = _ASSUMED
    if _pod_level(spec, "requests"):
        assumed = {name: amount for name, amount in _ASSUMED.items() if name not in requests}
    kinds = [kind for kind in ("containers", "initContainers") if spec.get(kind)]
    if not assumed or (resized is None and all(_names_all(each) for kind in kinds for each in spec[kind])):
        return _NO_EXCESS
    filled = _effective(spec, "requests", resized, assumed)
    return tuple([filled[name] - requests[name] for name in NONZERO])


def _names_all(container: Mapping[str, Any]) -> bool:
    named = (container.get("resources") or {}).get("requests") or {}
    return all(name in named for name in NONZERO)


def _check_placement(spec: Mapping[str, Any]) -> None:
    """Validate the constraints of a pod's nodes as the API server does, so that later readers need not."""
    if spec.get("affinity") is None:
        return
    affinity = mapping_at(spec, "affinity", "spec")
    path = "spec.affinity.nodeAffinity"
    on_nodes = mapping_at(affinity, "nodeAffinity", "spec.affinity", optional=True)
    required = mapping_at(on_nodes, _REQUIRED, path, optional=True)
    for index, term in enumerate(objects_at(required, "nodeSelectorTerms", f"{path}.{_REQUIRED}")):
        _check_term(term, f"{path}.{_REQUIRED}.nodeSelectorTerms[{index}]")
    for index, preferred in enumerate(objects_at(on_nodes, _PREFERRED, path)):
        where = f"{path}.{_PREFERRED}[{index}]"
        _check_term(mapping_at(preferred, "preference", where), f"{where}.preference")


def _check_term(term: Mapping[str, Any], path: str) -> None:
    for field in ("matchExpressions", "matchFields"):
        for index, requirement in enumerate(objects_at(term, field, path)):
            where = f"{path}.{field}[{index}]"
            operator = text_at(requirement, "operator", where)
            if operator not in _OPERATORS:
                raise ValueError(f"`{where}.operator` is `{operator}`: write one of {', '.join(_OPERATORS)}")
            values = requirement.get("values") or []
            if operator in ("In", "NotIn") and not values:
                raise ValueError(f"`{where}.values` is missing or empty: `{operator}` needs some")
            if operator in ("Exists", "DoesNotExist") and values:
                raise ValueError(f"`{where}.values` must be left out: `{operator}` takes none")


def _gpu_request(requests: ResourceList, annotations: Mapping[str, Any]) -> DeviceRequest | None:
    models = frozenset(
        model.strip() for model in text_at(annotations, MODEL_ANNOTATION, "metadata.annotations").split("|")
        if model.strip()
    )
    if _MILLI_ANNOTATION in annotations or _COUNT_ANNOTATION in annotations:
        share = min(_number_annotation(annotations, _MILLI_ANNOTATION, WHOLE_DEVICE), WHOLE_DEVICE)
        count = _number_annotation(annotations, _COUNT_ANNOTATION, 1)
        return DeviceRequest("gpu", count, share, models) if count and share else None
    for name in WHOLE_GPUS:
        if requests[name] > 0:
            return DeviceRequest("gpu", min(requests[name], _MOST_DEVICES), WHOLE_DEVICE, models)
    for name in _PERCENTS:
        if requests[name] > 0:
            return _percent_request(name, requests[name], requests[GPU_SHARED], models)
    return None


def _percent_request(name: str, percent: int, shared: int, models: frozenset[str]) -> DeviceRequest:
    """Return the device request in percent of one device: above 100 whole devices, unless it has a number."""
    count = min(shared or max(1, -(-percent // 100)), _MOST_DEVICES)
    fault = ""
    if percent % count or percent // count > 100 or (not shared and count > 1 and percent % 100):
        fault = (
            f"{percent} percent of `{name}` cannot be split into {count} equal devices: ask for at most 100, or for a"
            " multiple of 100"
        )
    return DeviceRequest("gpu", count, min(WHOLE_DEVICE, -(-percent // count) * 10), models, fault)


def _number_annotation(annotations: Mapping[str, Any], name: str, default: int) -> int:
    text = text_at(annotations, name, "metadata.annotations")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError(f"`metadata.annotations.{name}`: `{text}` is not a count")
    return int(text)
