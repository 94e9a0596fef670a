from dataclasses import replace

import pytest

from koordpolicy.engine.cluster.pods import DeviceRequest, PodInfo, ResourceList


def container(*, requests=None, limits=None, **fields):
    return {"name": "c", "resources": {"requests": requests or {}, "limits": limits or {}}, **fields}


def pod(*containers, annotations=None, labels=None, **spec):
    metadata = {"name": "p", "namespace": "shop", "uid": "u", "annotations": annotations or {}, "labels": labels or {}}
    return {"kind": "Pod", "metadata": metadata, "spec": {"containers": list(containers) or [container()], **spec}}


def test_a_pod_is_read_whole():
    item = pod(
        container(requests={"cpu": "500m", "memory": "1Gi"}, limits={"memory": "2Gi"}), priority=9100, nodeName="n1",
        labels={"koordinator.sh/qosClass": "LSR"},
    )
    found = PodInfo.of(item)
    assert {name: getattr(found, name) for name in PodInfo.__slots__} == {
        "key": "shop/p", "namespace": "shop", "name": "p", "uid": "u", "object": item, "node_name": "n1", "gpu": None,
        "requests": {"cpu": 500, "memory": 2**30}, "limits": {"memory": 2**31}, "priority": 9100,
        "priority_band": "koord-prod", "qos_class": "LSR", "kubernetes_qos": "Burstable",
            "excess": (0, 0),
    }
    assert (found.requests["nvidia.com/gpu"], found.on("n2").node_name, found.node_name) == (0, "n2", "n1")


def test_pods_of_one_shape_differ_in_nothing_but_what_tells_them_apart():
    def shape(name="p", spec=None, **metadata):
        item = pod(container(requests={"cpu": "1"}), **(spec or {}))
        return PodInfo.of({**item, "metadata": {**item["metadata"], "name": name, **metadata}, "status": {"phase": name}}).shape()

    same = [shape(), shape("q"), shape(uid="v", creationTimestamp="2026-01-01T00:00:00Z", resourceVersion="7", generation=2)]
    others = [shape(namespace="x"), shape(labels={"a": "b"}), shape(annotations={"a": "b"}), shape(ownerReferences=[{"kind": "Job"}]),
              shape(spec={"nodeSelector": {"a": "b"}}), shape(spec={"hostNetwork": True}), shape(spec={"hostNetwork": 1}), shape(spec={"nodeName": "n"})]
    assert (len(set(same)), len({*same, *others})) == (1, 9)


def test_a_pod_that_was_resized_has_another_shape_and_counts_for_more():
    plain = PodInfo.of(pod(container(requests={"cpu": "1"})))
    resized = replace(plain, requests=ResourceList({"cpu": 4000}))
    assert (plain.shape() == resized.shape(), plain.nonzero, resized.nonzero) == (False, (1000, 200 * 2**20), (4000, 200 * 2**20))
    assert replace(plain, limits=ResourceList({"cpu": 4000})).shape() != plain.shape()


def test_a_shape_is_the_same_whichever_parts_of_a_pod_are_one_object():
    text = "".join(["a", "b"])
    shared, apart = {"x": text, "y": text}, {"x": "ab", "y": "".join(["a", "b"])}
    assert PodInfo.of(pod(nodeSelector=shared)).shape() == PodInfo.of(pod(nodeSelector=apart)).shape()


def test_a_pod_that_is_no_plain_data_has_a_shape_of_its_own():
    assert PodInfo.of(pod(extra=object())).shape() is None


def test_effective_requests_follow_kubernetes():
    item = pod(
        container(requests={"cpu": "1", "memory": "1Gi"}), container(requests={"cpu": "500m"}),
        initContainers=[
            container(requests={"cpu": "1500m"}),
            container(requests={"cpu": "200m", "memory": "128Mi"}, restartPolicy="Always"),
            container(requests={"cpu": "3", "example.com/x": "1"}),
        ],
        overhead={"cpu": "10m"},
    )
    # The last init container runs beside the sidecar: 3200 > 1000 + 500 + 200.
    assert PodInfo.of(item).requests == {"cpu": 3210, "memory": 2**30 + 128 * 2**20, "example.com/x": 1}


def test_amounts_are_added_exactly_and_rounded_up_once():
    item = pod(*(container(requests={"cpu": "100u", "memory": "0.5"}) for _ in range(3)))
    assert PodInfo.of(item).requests == {"cpu": 1, "memory": 2}


def test_overhead_limits_only_what_is_limited():
    item = pod(container(limits={"cpu": "1"}), overhead={"cpu": "100m", "memory": "1Ki"})
    found = PodInfo.of(item)
    assert (found.limits, found.requests) == ({"cpu": 1100}, {"cpu": 100, "memory": 1024})


def test_resources_of_the_pod_win_over_those_of_its_containers():
    item = pod(container(requests={"cpu": "1", "x/y": "2"}), resources={"requests": {"cpu": "3", "x/y": "9"}})
    assert PodInfo.of(item).requests == {"cpu": 3000, "x/y": 2}


@pytest.mark.parametrize(("requests", "annotations", "expected"), [
    ({}, {}, None),
    ({"nvidia.com/gpu": "2"}, {}, DeviceRequest("gpu", 2, 1000)),
    ({"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}, {}, DeviceRequest("gpu", 1, 500)),
    ({"koordinator.sh/gpu-core": "200"}, {}, DeviceRequest("gpu", 2, 1000)),
    ({"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu.shared": "2"}, {}, DeviceRequest("gpu", 2, 500)),
    ({}, {"alibabacloud.com/gpu-milli": "460", "alibabacloud.com/gpu-count": "1"}, DeviceRequest("gpu", 1, 460)),
    ({}, {"alibabacloud.com/gpu-count": "4", "alibabacloud.com/gpu-card-model": "A10|T4|"},
     DeviceRequest("gpu", 4, 1000, frozenset({"A10", "T4"}))),
    ({}, {"alibabacloud.com/gpu-milli": "2000"}, DeviceRequest("gpu", 1, 1000)),
    ({}, {"alibabacloud.com/gpu-milli": "0", "alibabacloud.com/gpu-count": "1"}, None),
])
def test_what_a_pod_wants_of_devices(requests, annotations, expected):
    assert PodInfo.of(pod(container(requests=requests), annotations=annotations)).gpu == expected


@pytest.mark.parametrize(("requests", "count", "share", "fault"), [
    ({"koordinator.sh/gpu-core": "150"}, 2, 750, "150 percent of `koordinator.sh/gpu-core` cannot be split into 2 equal"),
    ({"koordinator.sh/gpu": "101"}, 2, 510, "101 percent of `koordinator.sh/gpu` cannot be split into 2 equal devices"),
    ({"koordinator.sh/gpu-memory-ratio": "300", "koordinator.sh/gpu.shared": "2"}, 2, 1000, "300 percent of"),
])
def test_a_pod_that_asks_for_devices_in_vain_is_a_pod_and_says_why(requests, count, share, fault):
    found = PodInfo.of(pod(container(requests=requests))).gpu
    assert (found.count, found.share, found.fault[:len(fault)]) == (count, share, fault)


@pytest.mark.parametrize(("item", "message"), [
    ([], "a pod must be an object, not a list"),
    ({"metadata": {"name": "p"}}, "`spec` is missing"),
    ({"metadata": {}, "spec": {}}, "`metadata.name` is missing"),
    ({"metadata": {"name": 5}, "spec": {}}, "`metadata.name` must be a text, not a number"),
    (pod(container(requests={"cpu": "12Zi"})), "`spec.containers[0].resources.requests.cpu`: `12Zi` is not a quantity"),
    (pod(container(requests={"cpu": True})),
     "`spec.containers[0].resources.requests.cpu` must be a quantity, not a boolean"),
    (pod(container(requests={"memory": "9Ei"}), container(requests={"memory": "9Ei"})), "the amount does not fit"),
    (pod({"resources": []}), "`spec.containers[0].resources` must be an object, not a list"),
    (pod(initContainers={}), "`spec.initContainers` must be a list, not an object"),
    (pod(priority="high"), "`spec.priority` must be a number, not a text"),
    (pod(annotations={"alibabacloud.com/gpu-milli": "half"}), "`half` is not a count"),
])
def test_what_is_malformed_is_named_with_its_field(item, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is what is compared
        PodInfo.of(item)
    assert message in str(caught.value)


_TERM = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"


def requires(**expression):
    term = {"matchExpressions": [expression]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


@pytest.mark.parametrize(("spec", "message"), [
    ({"nodeSelector": ["zone"]}, "`spec.nodeSelector` must be an object, not a list"),
    ({"nodeSelector": {"zone": 1}}, "`spec.nodeSelector.zone` must be a text, not a number"),
    ({"tolerations": "all"}, "`spec.tolerations` must be a list, not a text"),
    ({"schedulerName": 3}, "`spec.schedulerName` must be a text, not a number"),
    ({"affinity": "zone"}, "`spec.affinity` must be an object, not a text"),
    ({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": "9"}]}}},
     "`spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight` must be a number, not a text"),
    ({"affinity": requires(key="a", operator="Near")},
     f"`{_TERM}.matchExpressions[0].operator` is `Near`: write one of In, NotIn, Exists, DoesNotExist, Gt, Lt"),
    ({"affinity": requires(key="a", operator="In")},
     f"`{_TERM}.matchExpressions[0].values` is missing or empty: `In` needs some"),
    ({"affinity": requires(key="a", operator="Exists", values=["b"])},
     f"`{_TERM}.matchExpressions[0].values` must be left out: `Exists` takes none"),
    ({"affinity": requires(key="a", operator="In", values=[1])},
     f"`{_TERM}.matchExpressions[0].values` must be a list of texts"),
    ({"containers": [{"resources": {"requests": {"cpu": "-1"}}}]},
     "`spec.containers[0].resources.requests.cpu` is `-1`: it must not be negative"),
])
def test_what_says_where_a_pod_may_run_is_looked_at_when_it_is_read(spec, message):
    item = {"kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{"name": "main"}], **spec}}
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is what is compared
        PodInfo.of(item)
    assert str(caught.value) == message


def test_a_resource_that_is_absent_reads_zero_and_is_not_added_by_that():
    amounts = ResourceList(cpu=5)
    assert (amounts["x"], amounts) == (0, {"cpu": 5})
