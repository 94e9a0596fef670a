from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from koordpolicy.builtin_plugins.scheduler import DEFAULT_PLUGINS, KOORDINATOR_PLUGINS, PLUGINS
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.framework.handle import Nothing
from koordpolicy.engine.framework.points import Code, Point
from koordpolicy.plugin import SKIP, SKIP_SHAPE, CycleState, Event, Handle, OnlyNodes, QueuedPod

TABLE = {plugin.name: plugin for plugin in PLUGINS}
GIB = 1024 ** 3


def with_ports(*ports, name="p", node="", init=()):
    containers = [{"name": "main", "ports": list(ports)}]
    spec = {"containers": containers, "initContainers": list(init), **({"nodeName": node} if node else {})}
    return PodInfo.of({"kind": "Pod", "metadata": {"name": name}, "spec": spec})


# NodePorts


@pytest.mark.parametrize(("held", "wanted", "fits"), [
    ({"hostPort": 80}, {"hostPort": 80}, False),
    ({"hostPort": 80}, {"hostPort": 81}, True),
    ({"hostPort": 80}, {"hostPort": 80, "protocol": "UDP"}, True),
    ({"hostPort": 80, "hostIP": "10.0.0.1"}, {"hostPort": 80, "hostIP": "10.0.0.2"}, True),
    ({"hostPort": 80, "hostIP": "10.0.0.1"}, {"hostPort": 80}, False),
    ({"hostPort": 80}, {"hostPort": 80, "hostIP": "10.0.0.1"}, False),
    ({"containerPort": 80}, {"hostPort": 80}, True),
])
def test_a_host_port_is_taken_once_per_address_and_protocol(kit, held, wanted, fits):
    cluster = Cluster([kit.node("a"), with_ports(held, name="held", node="a").object])
    assert (kit.passed(kit.make("NodePorts"), with_ports(wanted), cluster) == ["a"]) is fits


def test_ports_are_followed_as_pods_come_and_go(kit):
    plugin, cluster = kit.make("NodePorts"), Cluster([kit.node("a"), kit.node("b")])
    wanted = with_ports({"hostPort": 80})
    assert kit.passed(plugin, wanted, cluster) == ["a", "b"]
    cluster.assume(with_ports({"hostPort": 80}, name="one"), "a")
    assert kit.reasons(plugin, wanted, cluster) == {"node(s) didn't have free ports for the requested pod ports": ["a"]}
    overlay = cluster.snapshot().overlay(
        {"a": NodeChange(remove=["default/one"]), "b": NodeChange(add=[with_ports({"hostPort": 80}, name="two")])},
    )
    assert plugin.filter(CycleState(), wanted, overlay, kit.rows(overlay)).passed.tolist() == [True, False]
    cluster.forget("default/one")
    assert kit.passed(plugin, wanted, cluster) == ["a", "b"]


def test_ports_of_sidecars_count_and_those_of_other_init_containers_do_not(kit):
    snapshot = Cluster([kit.node("a")]).snapshot()
    plugin, port = kit.make("NodePorts"), {"ports": [{"hostPort": 80}]}
    sidecar = with_ports(init=[{"name": "side", "restartPolicy": "Always", **port}])
    assert plugin.pre_filter(CycleState(), sidecar, snapshot) is None
    assert plugin.pre_filter(CycleState(), with_ports(init=[{"name": "once", **port}]), snapshot) is SKIP_SHAPE


# ImageLocality


def imaged(kit, name, **images):
    item = kit.node(name)
    item["status"]["images"] = [{"names": [f"{image}:latest"], "sizeBytes": size} for image, size in images.items()]
    return item


def with_images(*names, init=()):
    return PodInfo.of({"kind": "Pod", "metadata": {"name": "p"}, "spec": {
        "containers": [{"name": f"c{place}", "image": name} for place, name in enumerate(names)],
        "initContainers": [{"name": f"i{place}", "image": name} for place, name in enumerate(init)]}})


def test_images_count_by_size_and_by_the_share_of_the_nodes_that_have_them(kit):
    cluster = Cluster([imaged(kit, "a", app=GIB), imaged(kit, "b", app=GIB, other=GIB), kit.node("c"), kit.node("d")])
    plugin, least, most = kit.make("ImageLocality"), 23 * 1024 ** 2, 1000 * 1024 ** 2
    half = 100 * (GIB // 2 - least) // (most - least)
    assert kit.scores(plugin, with_images("app"), cluster) == {"a": half, "b": half, "c": 0, "d": 0}
    both = 100 * (GIB // 2 + GIB // 4 - least) // (2 * most - least)
    assert kit.scores(plugin, with_images("app:latest", "other"), cluster)["b"] == both
    assert kit.scores(plugin, with_images("other", init=["app"]), cluster)["b"] == both
    cluster.upsert(imaged(kit, "b", app=GIB))
    assert kit.scores(plugin, with_images("app", "other"), cluster)["b"] == kit.scores(
        plugin, with_images("app", "none"), cluster,
    )["b"]
    cluster.upsert(kit.node("b"))
    assert kit.scores(plugin, with_images("app", "other"), cluster)["b"] == 0


def test_where_nodes_report_other_sizes_the_first_ones_counts_or_each_ones_own(kit):
    cluster = Cluster([imaged(kit, "b", app=2 * GIB), imaged(kit, "a", app=GIB), kit.node("c"), kit.node("d")])
    half = 100 * (GIB // 2 - 23 * 1024 ** 2) // (1000 * 1024 ** 2 - 23 * 1024 ** 2)
    for sizes, expected in (
        (None, [half, half, 0, 0]), ("FirstNode", [half, half, 0, 0]), ("EachNode", [half, 100, 0, 0]),
    ):
        plugin = kit.make("ImageLocality", **({} if sizes is None else {"sizes": sizes}))
        assert list(kit.scores(plugin, with_images("app"), cluster).values()) == expected
        view = cluster.snapshot().overlay({"a": NodeChange(node=imaged(kit, "a", app=2 * GIB))})
        assert plugin.score(CycleState(), with_images("app"), view, kit.rows(view)).values.tolist() == [100, 100, 0, 0]
    plugin = kit.make("ImageLocality")
    cluster.upsert(kit.node("a"))
    assert kit.scores(plugin, with_images("app"), cluster)["b"] == half  # twice the size, on half as many nodes
    with pytest.raises(ValueError, match="`sizes` is `All`: choose one of FirstNode, EachNode"):
        type(plugin).check_args({"sizes": "All"})


def test_a_name_that_a_node_reports_twice_has_the_first_size(kit):
    item = imaged(kit, "a", app=GIB)
    item["status"]["images"].append({"names": ["app:latest"], "sizeBytes": 1})
    assert kit.scores(kit.make("ImageLocality"), with_images("app"), Cluster([item])) == {"a": 100}


def test_a_registry_with_a_port_is_no_tag(kit):
    cluster = Cluster([imaged(kit, "a", **{"registry:5000/app": GIB})])
    assert kit.scores(kit.make("ImageLocality"), with_images("registry:5000/app"), cluster) == {"a": 100}


# The queue


def test_pods_queue_by_priority_and_then_by_age(kit):
    plugin = kit.make("PrioritySort")
    queued = [
        QueuedPod(kit.pod(name, priority=priority), since)
        for name, priority, since in (("a", 0, 1), ("b", 5, 9), ("c", 5, 3))
    ]
    assert [each.pod.name for each in sorted(queued, key=plugin.queue_key)] == ["c", "b", "a"]


def test_a_gated_pod_waits_for_its_gates(kit):
    plugin, snapshot = kit.make("SchedulingGates"), Cluster().snapshot()
    refusal = plugin.pre_enqueue(kit.pod(schedulingGates=[{"name": "a"}, {"name": "b"}]), snapshot)
    assert (refusal.message, refusal.code) == ("waiting for scheduling gates: [a b]", Code.UNRESOLVABLE)
    assert plugin.pre_enqueue(kit.pod(), snapshot) is None
    assert plugin.may_help(Event("Pod", "default/p"), kit.pod())
    assert not plugin.may_help(Event("Node", "a"), kit.pod())


def test_a_pod_with_resource_claims_is_left_to_another_scheduler(kit):
    plugin, snapshot = kit.make("ResourceClaims"), Cluster().snapshot()
    refusal = plugin.pre_enqueue(kit.pod(resourceClaims=[{"name": "gpu", "resourceClaimName": "one"}]), snapshot)
    assert (refusal.message, refusal.code) == (
        "resource claims (spec.resourceClaims) are not supported: another scheduler must schedule the pod",
        Code.UNRESOLVABLE)
    assert plugin.pre_enqueue(kit.pod(), snapshot) is None
    assert plugin.may_help(Event("Pod", "default/p"), kit.pod())
    assert not plugin.may_help(Event("Node", "a"), kit.pod())


class Binds(Nothing):
    def __init__(self, fault=None):
        self.bound, self.fault = [], fault

    def bind(self, pod, node):
        if self.fault is not None:
            raise self.fault
        self.bound.append((pod.key, node))


def test_the_binder_binds_through_the_client_and_says_what_failed(kit):
    def bind(client):
        handle = replace(Handle("p", Cluster().snapshot, lambda: 0, logging.getLogger("p")), client=client)
        return TABLE["DefaultBinder"].make({}, handle).bind(CycleState(), kit.pod(), "a")

    client = Binds()
    assert (bind(client), client.bound) == (None, [("default/p", "a")])
    refusal = bind(Binds(OSError("conflict")))
    assert (refusal.message, refusal.code) == ("conflict", Code.ERROR)


# NodeAffinity


def required(*terms):
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def named(*names):
    return {"matchFields": [{"key": "metadata.name", "operator": "In", "values": list(names)}]}


@pytest.mark.parametrize(("affinity", "expected"), [
    (required(named("a"), named("b", "c")), OnlyNodes(frozenset("abc"))),
    (required({"matchFields": named("a", "b")["matchFields"] + named("b")["matchFields"]}), OnlyNodes(frozenset("b"))),
    (required(named("a"), {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}), None),
    (required(), None),
    ({}, SKIP_SHAPE),
])
def test_fields_that_name_nodes_narrow_the_choice(kit, affinity, expected):
    plugin = kit.make("NodeAffinity")
    assert plugin.pre_filter(CycleState(), kit.pod(affinity=affinity), Cluster().snapshot()) == expected


def test_names_that_contradict_each_other_leave_no_node(kit):
    term = {"matchFields": named("a")["matchFields"] + named("b")["matchFields"]}
    refusal = kit.make("NodeAffinity").pre_filter(CycleState(), kit.pod(affinity=required(term)), Cluster().snapshot())
    assert (refusal.message, refusal.code) == ("pod affinity terms conflict", Code.UNRESOLVABLE)


def test_an_added_affinity_holds_for_all_pods_of_the_profile(kit):
    added = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "team", "operator": "Exists"}]}]},
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 3, "preference": {"matchExpressions": [
            {"key": "zone", "operator": "In", "values": ["a"]}]}}],
    }
    plugin = kit.make("NodeAffinity", addedAffinity=added)
    cluster = Cluster(
        [
            kit.node("mine", labels={"team": "x", "zone": "a"}), kit.node("other", labels={"team": "y"}),
            kit.node("none"),
        ],
    )
    assert plugin.pre_filter(CycleState(), kit.pod(), cluster.snapshot()) is None
    assert kit.reasons(plugin, kit.pod(nodeSelector={"zone": "a"}), cluster) == {
        "node(s) didn't match scheduler-enforced node affinity": ["none"],
        "node(s) didn't match Pod's node affinity/selector": ["other"]}
    assert kit.scores(plugin, kit.pod(), cluster, {"mine", "other"}) == {"mine": 100, "other": 0}


@pytest.mark.parametrize(("added", "message"), [
    (
        {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Is"}]}],
            },
        },
        "`Is`",
    ),
    (
        {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 0, "preference": {}}]},
        "not in valid range [1, 100]",
    ),
])
def test_an_added_affinity_that_cannot_be_read_is_refused(kit, added, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the message is compared
        kit.make("NodeAffinity", addedAffinity=added)
    assert message in str(error.value)


# Spreading of pods that say nothing themselves


def service(selector, namespace="default"):
    return {"kind": "Service", "metadata": {"name": "web", "namespace": namespace}, "spec": {"selector": selector}}


def labelled(name, node="", owner=None, **labels):
    metadata = {"name": name, "labels": labels, **({"ownerReferences": [owner]} if owner else {})}
    return {"kind": "Pod", "metadata": metadata,
            "spec": {"containers": [{"name": "main"}], **({"nodeName": node} if node else {})}}


def spread_nodes(kit):
    return [kit.node(name, labels={"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone})
            for name, zone in (("a", "east"), ("b", "east"), ("c", "west"))]


def test_pods_of_a_service_are_spread_without_saying_so(kit):
    plugin = kit.make("PodTopologySpread")
    objects = [*spread_nodes(kit), labelled("one", "a", app="web")]
    new = PodInfo.of(labelled("new", app="web"))
    alone = Cluster(objects)
    assert plugin.pre_score(CycleState(), new, alone.snapshot(), kit.rows(alone.snapshot())) is SKIP
    alone.upsert(service({"app": "web"}, "elsewhere"))
    assert plugin.pre_score(CycleState(), new, alone.snapshot(), kit.rows(alone.snapshot())) is SKIP
    alone.upsert(service({"app": "web"}))
    assert plugin.pre_score(CycleState(), new, alone.snapshot(), kit.rows(alone.snapshot())) is None
    found = kit.scores(plugin, new, alone)
    assert found["a"] < found["b"] < found["c"] == 100
    assert plugin.pre_filter(CycleState(), new, alone.snapshot()) is SKIP_SHAPE


def test_the_selector_of_the_controller_counts_too(kit):
    owner = {"kind": "ReplicaSet", "apiVersion": "apps/v1", "name": "web-1", "controller": True, "uid": "u"}
    replicas = {"kind": "ReplicaSet", "metadata": {"name": "web-1", "namespace": "default"},
                "spec": {"selector": {"matchLabels": {"hash": "1"}}}}
    cluster = Cluster([*spread_nodes(kit), service({"app": "web"}), replicas, labelled("old", "a", app="web", hash="0"),
                       labelled("other", "b", hash="1"), labelled("mine", "c", app="web", hash="1")])
    found = kit.scores(
        kit.make("PodTopologySpread"), PodInfo.of(labelled("new", owner=owner, app="web", hash="1")), cluster,
    )
    assert found["a"] == found["b"] > found["c"]


def test_only_pods_with_the_same_values_count_for_keys_that_must_match(kit):
    constraint = {"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule",
                  "labelSelector": {"matchLabels": {"app": "web"}}, "matchLabelKeys": ["version", "absent"]}
    cluster = Cluster(
        [
            *spread_nodes(kit), labelled("old", "c", app="web", version="1"),
            labelled("one", "a", app="web", version="2"),
        ],
    )
    new = labelled("new", app="web", version="2")
    new["spec"]["topologySpreadConstraints"] = [constraint]
    plugin = kit.make("PodTopologySpread")
    assert kit.passed(plugin, PodInfo.of(new), cluster) == ["c"]
    new["metadata"]["labels"].pop("version")
    assert kit.passed(plugin, PodInfo.of(new), cluster) == ["a", "b", "c"]


def test_default_constraints_may_be_a_profiles_own(kit):
    plugin = kit.make("PodTopologySpread", defaultingType="List", defaultConstraints=[
        {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}])
    cluster = Cluster([*spread_nodes(kit), service({"app": "web"}), labelled("one", "a", app="web")])
    assert kit.reasons(plugin, PodInfo.of(labelled("new", app="web")), cluster) == {
        "node(s) didn't match pod topology spread constraints": ["a", "b"]}


ZONES = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}


@pytest.mark.parametrize(("args", "message"), [
    ({"defaultConstraints": [ZONES]}, "must be left out where `defaultingType` is System"),
    ({"defaultingType": "Some"}, "choose one of System, List"),
    (
        {"defaultingType": "List", "defaultConstraints": [{**ZONES, "maxSkew": 0}]},
        "`defaultConstraints[0].maxSkew` is 0",
    ),
    ({"defaultingType": "List", "defaultConstraints": [{**ZONES, "topologyKey": ""}]}, "topologyKey` is missing"),
    (
        {"defaultingType": "List", "defaultConstraints": [{**ZONES, "whenUnsatisfiable": "Never"}]},
        "choose one of DoNotSchedule",
    ),
    ({"defaultingType": "List", "defaultConstraints": [ZONES, ZONES]}, "is there already"),
    ({"defaultingType": "List", "defaultConstraints": [{**ZONES, "minDomains": 2}]}, "minDomains` must be left out"),
    ({"defaultingType": "List", "defaultConstraints": [{**ZONES, "labelSelector": {}}]}, "must not have a selector"),
])
def test_default_constraints_that_kube_scheduler_refuses_are_refused(kit, args, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the message is compared
        kit.make("PodTopologySpread", **args)
    assert message in str(error.value)


def test_constraints_and_terms_that_cannot_be_read_are_an_error_of_the_pod(kit):
    snapshot = Cluster(spread_nodes(kit)).snapshot()
    wrong = {"matchExpressions": [{"key": "a", "operator": "Is"}]}
    spread = kit.pod(
        topologySpreadConstraints=[{**ZONES, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": wrong}],
    )
    terms = kit.pod(affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "zone", "labelSelector": wrong}]}})
    for name, pod in (("PodTopologySpread", spread), ("InterPodAffinity", terms)):
        refusal = kit.make(name).pre_filter(CycleState(), pod, snapshot)
        assert (refusal.code, refusal.message) == (Code.ERROR, "`Is` is not a valid label selector operator")


def test_affinity_arguments_are_checked(kit):
    assert TABLE["InterPodAffinity"].check_args({}) == {
        "hardPodAffinityWeight": 1, "ignorePreferredTermsOfExistingPods": False,
    }
    with pytest.raises(ValueError, match="`hardPodAffinityWeight` is 101"):
        kit.make("InterPodAffinity", hardPodAffinityWeight=101)


def test_preferences_of_running_pods_may_be_left_out(kit):
    term = {
        "weight": 5,
        "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "web"}}},
    }
    running = labelled("db", "b", app="db")
    running["spec"]["affinity"] = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}
    cluster = Cluster([*spread_nodes(kit), running])
    new, snapshot = PodInfo.of(labelled("new", app="web")), cluster.snapshot()
    assert kit.scores(kit.make("InterPodAffinity"), new, cluster) == {"a": 0, "b": 100, "c": 0}
    ignoring = kit.make("InterPodAffinity", ignorePreferredTermsOfExistingPods=True)
    assert ignoring.pre_score(CycleState(), new, snapshot, kit.rows(snapshot)) is SKIP


# The constants for component configurations


def test_the_default_sets_name_plugins_at_points_that_they_have():
    for enabled in (DEFAULT_PLUGINS, KOORDINATOR_PLUGINS):
        for point, plugins in enabled.items():
            assert all(weight >= 1 for _, weight in plugins)
            assert all(point in TABLE[name].points for name, _ in plugins if name in TABLE)
    for plugin in PLUGINS:
        if plugin.name in {name for plugins in DEFAULT_PLUGINS.values() for name, _ in plugins}:
            assert all(plugin.name in dict(DEFAULT_PLUGINS[point]) for point in plugin.points)


def test_koordinators_profile_comes_after_the_defaults_but_where_those_are_disabled():
    assert [name for name, _ in KOORDINATOR_PLUGINS[Point.POST_FILTER]] == [
        "Reservation", "Coscheduling", "ElasticQuota", "DefaultPreemption",
    ]
    assert dict(KOORDINATOR_PLUGINS[Point.SCORE]) == {
        "TaintToleration": 3, "NodeAffinity": 2, "NodeResourcesFit": 1, "PodTopologySpread": 2, "InterPodAffinity": 2,
        "NodeResourcesBalancedAllocation": 1, "ImageLocality": 1, "LoadAwareScheduling": 1, "NodeNUMAResource": 1,
        "DeviceShare": 1, "Reservation": 5000, "Coscheduling": 1}


def test_plugins_say_which_events_may_help(kit):
    pod, other = kit.pod("waiting"), kit.pod("other", requests={"cpu": "1"}).on("a")
    left = Event("Pod", other.key, old_pod=other)
    came = Event("Node", "n", new={})
    smaller = Event("Pod", other.key, old_pod=other, new_pod=kit.pod("other").on("a"))
    for name in ("NodeResourcesFit", "NodePorts", "NodeVolumeLimits"):
        assert kit.make(name).may_help(left, pod)
        assert kit.make(name).may_help(came, pod)
    assert kit.make("NodeResourcesFit").may_help(smaller, pod)
    for name in ("NodeAffinity", "NodeName", "NodeUnschedulable", "TaintToleration", "VolumeBinding"):
        assert not kit.make(name).may_help(left, pod)
        assert kit.make(name).may_help(came, pod)
    for name in ("PodTopologySpread", "InterPodAffinity"):
        assert kit.make(name).may_help(left, pod)
        assert not kit.make(name).may_help(Event("Pod", "default/x", new={}), pod)
    assert kit.make("VolumeBinding").may_help(Event("PersistentVolumeClaim", "default/c"), kit.pod(volumes=[
        {"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]))
