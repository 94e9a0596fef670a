import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.cluster.objects.pods import DeviceRequest, PodInfo, ResourceList


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


def test_a_pod_like_another_one_differs_in_its_object_name_and_uid():
    def item(name):
        made = pod(container(requests={"cpu": "1"}))
        return {**made, "metadata": {**made["metadata"], "name": name, "uid": f"u-{name}"}}

    first, second = PodInfo.of(item("a")), PodInfo.of(item("b"))
    made = first.like(second.object, "b", "u-b")
    assert {name: getattr(made, name) for name in PodInfo.__slots__} == {
        name: getattr(second, name) for name in PodInfo.__slots__}
    assert (made.shape(), made.on("n").shape()) == (second.shape(), second.on("n").shape())


def test_pods_of_one_shape_differ_in_nothing_but_what_tells_them_apart():
    def shape(name="p", spec=None, **metadata):
        item = pod(container(requests={"cpu": "1"}), **(spec or {}))
        return PodInfo.of(
            {**item, "metadata": {**item["metadata"], "name": name, **metadata}, "status": {"phase": name}},
        ).shape()

    same = [
        shape(), shape("q"),
        shape(uid="v", creationTimestamp="2026-01-01T00:00:00Z", resourceVersion="7", generation=2),
    ]
    others = [
        shape(namespace="x"), shape(labels={"a": "b"}), shape(annotations={"a": "b"}),
        shape(ownerReferences=[{"kind": "Job"}]), shape(spec={"nodeSelector": {"a": "b"}}),
        shape(spec={"hostNetwork": True}), shape(spec={"hostNetwork": False}), shape(spec={"nodeName": "n"}),
    ]
    assert (len(set(same)), len({*same, *others})) == (1, 9)


def test_a_pod_that_was_resized_has_another_shape_and_counts_for_more():
    plain = PodInfo.of(pod(container(requests={"cpu": "1"})))
    resized = replace(plain, requests=ResourceList({"cpu": 4000}))
    assert (plain.shape() == resized.shape(), plain.nonzero, resized.nonzero) == (
        False, (1000, 200 * 2**20), (4000, 200 * 2**20),
    )
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


def running(*containers, status, **spec):
    return {**pod(*containers, nodeName="n1", **spec), "status": {"phase": "Running", **status}}


def has(name="c", *, allocated=None, **requests):
    return {"name": name, "resources": {"requests": requests}, "allocatedResources": allocated or {}}


INFEASIBLE = [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]
DEFERRED = [{"type": "PodResizePending", "status": "True", "reason": "Deferred"}]


@pytest.mark.parametrize(("conditions", "has_cpu", "allocated", "expected"), [
    ([], "500m", "700m", 1000), ([], "2", "700m", 2000), ([], "500m", "3", 3000),
    (DEFERRED, "500m", "700m", 1000), (INFEASIBLE, "500m", "700m", 700), (INFEASIBLE, "2", "700m", 2000),
    ([{"type": "Ready", "reason": "Infeasible"}, *DEFERRED, *INFEASIBLE], "500m", "700m", 1000),
])
def test_a_container_resized_in_place_counts_the_most_of_what_it_asks_for_was_allocated_and_has(
    conditions, has_cpu, allocated, expected,
):
    status = {"conditions": conditions, "containerStatuses": [has(allocated={"cpu": allocated}, cpu=has_cpu)]}
    assert PodInfo.of(running(container(requests={"cpu": "1"}), status=status)).requests == {"cpu": expected}


def test_a_status_that_says_nothing_of_what_the_container_has_changes_nothing():
    status = {
        "conditions": INFEASIBLE,
        "containerStatuses": [{"name": "c", "allocatedResources": {"cpu": "9"}}, has("other", cpu="9")],
    }
    assert PodInfo.of(running(container(requests={"cpu": "1"}), status=status)).requests == {"cpu": 1000}


def test_a_resource_that_an_infeasible_resize_alone_names_does_not_count():
    status = {"conditions": INFEASIBLE, "containerStatuses": [has(allocated={"cpu": "1"}, cpu="1")]}
    found = PodInfo.of(running(container(requests={"cpu": "2", "memory": "1Gi"}), status=status))
    assert (found.requests, found.nonzero) == ({"cpu": 1000}, (1000, 200 * 2**20))


def test_a_pod_that_has_no_node_counts_what_its_spec_says_whatever_its_status():
    item = running(container(requests={"cpu": "1"}), status={"containerStatuses": [has(cpu="9")]})
    waiting = {**item, "spec": {key: value for key, value in item["spec"].items() if key != "nodeName"}}
    assert (PodInfo.of(waiting).requests, PodInfo.of(item).requests) == ({"cpu": 1000}, {"cpu": 9000})
    assert PodInfo.of(item).unbound().requests == {"cpu": 1000}


def test_limits_follow_what_the_container_has_but_not_what_it_was_allocated():
    status = {
        "containerStatuses": [{"name": "c", "allocatedResources": {"cpu": "9"}, "resources": {"limits": {"cpu": "3"}}}],
    }
    assert PodInfo.of(running(container(limits={"cpu": "2"}), status=status)).limits == {"cpu": 3000}
    assert PodInfo.of(
        running(container(limits={"cpu": "2"}), status={**status, "conditions": INFEASIBLE}),
    ).limits == {"cpu": 3000}


@pytest.mark.parametrize(("status", "cpu"), [
    ({"resources": {"requests": {"cpu": "4"}}}, 4000), ({"resources": {"requests": {"cpu": "1"}}}, 3000),
    ({"resources": {}, "allocatedResources": {"cpu": "5"}}, 5000), ({"allocatedResources": {"cpu": "5"}}, 3000),
    ({"resources": {"requests": {"cpu": "1"}}, "conditions": INFEASIBLE}, 1000),
    ({"resources": {}, "conditions": INFEASIBLE}, 0),
])
def test_a_pod_resized_as_a_whole_counts_what_its_own_status_says(status, cpu):
    item = running(
        container(requests={"cpu": "1", "memory": "1Gi"}), status=status, resources={"requests": {"cpu": "3"}},
        overhead={"cpu": "10m"},
    )
    assert PodInfo.of(item).requests == {"cpu": cpu + 10, "memory": 2**30}


def test_pods_that_differ_in_a_resize_alone_have_other_shapes():
    def shape(**status):
        return PodInfo.of(running(container(requests={"cpu": "1"}), status=status)).shape()

    one, same, larger = shape(), shape(startTime="2026-01-01T00:00:00Z", containerStatuses=[has(cpu="500m")]), shape(
        containerStatuses=[has(cpu="2")],
    )
    # It asks for as much as before, but names memory now.
    named = shape(containerStatuses=[has(memory="0")])
    assert (one == same, len({one, larger, named})) == (True, 3)


@pytest.mark.parametrize(("status", "message"), [
    (
        {"containerStatuses": [has(cpu="x")]},
        "`status.containerStatuses[0].resources.requests.cpu`: `x` is not a quantity",
    ),
    (
        {"containerStatuses": [has(allocated={"cpu": "-1"})]},
        "`status.containerStatuses[0].allocatedResources.cpu` is `-1`: it must not be negative",
    ),
    (
        {"containerStatuses": [{"name": "c", "resources": 5}]},
        "`status.containerStatuses[0].resources` must be an object, not a number",
    ),
    ({"containerStatuses": 5}, "`status.containerStatuses` must be a list, not a number"),
    ({"containerStatuses": [has(cpu="1")], "conditions": {}}, "`status.conditions` must be a list, not an object"),
])
def test_a_status_that_is_malformed_is_named(status, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        PodInfo.of(running(container(requests={"cpu": "1"}), status=status))


@pytest.mark.parametrize(("level", "named", "overhead", "nonzero", "containers"), [
    # Nobody asks for memory: two containers of 200 MiB. What a pod or one of its containers names is no less than that.
    ({"cpu": "3"}, {"cpu": "1"}, {}, (3000, 400 * 2**20), (1100, 400 * 2**20)),
    ({"cpu": "3"}, {"memory": "1Gi"}, {}, (3000, 2**30), (200, 2**30 + 200 * 2**20)),
    ({"memory": "1Gi"}, {}, {"cpu": "10m"}, (10, 2**30), (210, 400 * 2**20)),
    ({"hugepages-2Mi": "4Mi"}, {"cpu": "1"}, {}, (1000, 400 * 2**20), (1100, 400 * 2**20)),
    ({"example.com/x": "4"}, {"cpu": "1"}, {}, (1100, 400 * 2**20), (1100, 400 * 2**20)),
])
def test_pod_level_requests_change_what_unnamed_amounts_count(level, named, overhead, nonzero, containers):
    item = pod(container(requests=named), container(), resources={"requests": level}, overhead=overhead)
    found = PodInfo.of(item)
    counted = found.container_requests()
    assert (found.nonzero, (counted["cpu"], counted["memory"])) == (nonzero, containers)


NAMES = ("cpu", "memory", "example.com/x")
amounts = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 5000))


def as_texts(found):
    return {name: f"{amount}m" if name == "cpu" else str(amount) for name, amount in found.items()}


@given(
    containers=st.lists(amounts, min_size=1, max_size=3), inits=st.lists(st.tuples(amounts, st.booleans()), max_size=3),
    statuses=st.lists(st.none() | st.tuples(amounts, amounts), min_size=6, max_size=6), infeasible=st.booleans(),
    overhead=amounts,
)
def test_what_a_resized_pod_requests_is_the_peak_of_what_runs_together(
    containers, inits, statuses, infeasible, overhead,
):
    def made(name, requests, **fields):
        return {"name": name, "resources": {"requests": as_texts(requests)}, **fields}

    def counted(place, requests, name, default):
        status = statuses[place]
        if status is None:
            return requests.get(name, default)
        found = [each[name] for each in ({} if infeasible else requests, *status) if name in each]
        return max(found) if found else default

    def peak(name, default):
        sums = [counted(place, each, name, default) for place, each in enumerate(containers)]
        stays, most = 0, 0
        for place, (each, sidecar) in enumerate(inits, start=3):
            amount = counted(place, each, name, default) if sidecar else each.get(name, default)
            most = max(most, stays + amount)
            stays += amount if sidecar else 0
        return max(sum(sums) + stays, most) + overhead.get(name, 0)

    def reported(place):
        if statuses[place] is None:
            return {"name": f"c{place}"}
        resources, allocated = statuses[place]
        return {
            "name": f"c{place}", "resources": {"requests": as_texts(resources)},
            "allocatedResources": as_texts(allocated),
        }

    item = running(
        *(made(f"c{place}", each) for place, each in enumerate(containers)),
        initContainers=[
            made(f"c{place}", each, **({"restartPolicy": "Always"} if sidecar else {}))
            for place, (each, sidecar) in enumerate(inits, start=3)
        ],
        overhead=as_texts(overhead),
        status={
            "conditions": INFEASIBLE if infeasible else [],
            "containerStatuses": [reported(place) for place in range(len(containers))],
            "initContainerStatuses": [reported(place) for place in range(3, 3 + len(inits))],
        },
    )
    found = PodInfo.of(item)
    assert {name: found.requests[name] for name in NAMES} == {name: peak(name, 0) for name in NAMES}
    assert found.nonzero == (peak("cpu", 100), peak("memory", 200 * 2**20))


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
    (
        {"koordinator.sh/gpu-core": "150"}, 2, 750,
        "150 percent of `koordinator.sh/gpu-core` cannot be split into 2 equal",
    ),
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
    ({"metadata": {"name": 5}, "spec": {}}, "`metadata.name` must be a string, not a number"),
    (pod(container(requests={"cpu": "12Zi"})), "`spec.containers[0].resources.requests.cpu`: `12Zi` is not a quantity"),
    (pod(container(requests={"cpu": True})),
     "`spec.containers[0].resources.requests.cpu` must be a quantity, not a boolean"),
    (pod(container(requests={"memory": "9Ei"}), container(requests={"memory": "9Ei"})), "the amount does not fit"),
    (pod({"resources": []}), "`spec.containers[0].resources` must be an object, not a list"),
    (pod(initContainers={}), "`spec.initContainers` must be a list, not an object"),
    (pod(priority="high"), "`spec.priority` must be a number, not a string"),
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
    ({"nodeSelector": {"zone": 1}}, "`spec.nodeSelector.zone` must be a string, not a number"),
    ({"tolerations": "all"}, "`spec.tolerations` must be a list, not a string"),
    ({"schedulerName": 3}, "`spec.schedulerName` must be a string, not a number"),
    ({"affinity": "zone"}, "`spec.affinity` must be an object, not a string"),
    (
        {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": "9"}]}}},
        (
            "`spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight` must be a number, "
            "not a string"
        ),
    ),
    ({"affinity": requires(key="a", operator="Near")},
     f"`{_TERM}.matchExpressions[0].operator` is `Near`: write one of In, NotIn, Exists, DoesNotExist, Gt, Lt"),
    ({"affinity": requires(key="a", operator="In")},
     f"`{_TERM}.matchExpressions[0].values` is missing or empty: `In` needs some"),
    ({"affinity": requires(key="a", operator="Exists", values=["b"])},
     f"`{_TERM}.matchExpressions[0].values` must be left out: `Exists` takes none"),
    ({"affinity": requires(key="a", operator="In", values=[1])},
     f"`{_TERM}.matchExpressions[0].values[0]` must be a string, not a number"),
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


def test_pods_with_the_same_amounts_share_them_and_a_resize_counts_for_itself():
    def info(name, node="n", **status):
        container = {"name": "main", "image": name, "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}}
        return PodInfo.of({"kind": "Pod", "metadata": {"name": name, "uid": name}, "status": status,
                           "spec": {"containers": [container], "nodeName": node}})

    resized = {"containerStatuses": [{"name": "main", "resources": {"requests": {"cpu": "3"}}}]}
    one, two = info("one"), info("two", qosClass="Burstable")
    assert one.requests is two.requests
    assert one.limits is two.limits
    assert (one.requests, one.limits) == ({"cpu": 1000}, {"cpu": 2000})
    assert info("three", **resized).requests == {"cpu": 3000}
    assert info("four", "", **resized).requests == {"cpu": 1000}
    infeasible = {"conditions": [{"type": "PodResizePending", "reason": "Infeasible", "status": "True"}]}
    shrunk = {"containerStatuses": [{"name": "main", "resources": {"requests": {"cpu": "500m"}}}]}
    assert info("five", **shrunk).requests == {"cpu": 1000}
    assert info("six", **shrunk, **infeasible).requests == {"cpu": 500}


_PARTS = {
    "labels": [{}, {"app": "a"}, {"koordinator.sh/qosClass": "BE"}],
    "annotations": [{}, {"alibabacloud.com/gpu-milli": "500"}],
    "containers": [[container(requests={"cpu": "1"})], [container(limits={"memory": "1Gi"}), container()], []],
    "resources": [None, {"requests": {"cpu": "3"}}],
    "statuses": [None, [{"name": "c", "allocatedResources": {"cpu": "2"}, "resources": {"requests": {"cpu": "2"}}}]],
    "conditions": [None, [{"type": "PodResizePending", "reason": "Infeasible"}], [{"type": "Ready"}]],
    "affinity": [None, {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "k", "operator": "Like"}]}]}}}],
}


@given(st.lists(st.fixed_dictionaries({
    **{name: st.sampled_from(parts) for name, parts in _PARTS.items()}, "node": st.sampled_from([None, "n"]),
    "priority": st.sampled_from([None, 0, 9500]), "qos": st.sampled_from([None, "Guaranteed"]),
}), max_size=8))
def test_a_pod_of_shared_parts_has_the_facts_of_one_by_itself(given_pods):
    def facts(item, *, is_sound):
        try:
            found = PodInfo.of(item, is_sound=is_sound)
        except ValueError as error:
            return str(error)
        return {name: getattr(found, name) for name in PodInfo.__slots__}

    for index, each in enumerate(given_pods):
        item = {
            "metadata": {"name": f"p{index}", "labels": each["labels"], "annotations": each["annotations"]},
            "spec": {"containers": each["containers"], "resources": each["resources"], "affinity": each["affinity"],
                     "nodeName": each["node"], "priority": each["priority"]},
            "status": {"containerStatuses": each["statuses"], "conditions": each["conditions"],
                       "qosClass": each["qos"]},
        }
        assert facts(item, is_sound=True) == facts(item, is_sound=False)
