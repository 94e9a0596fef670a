from __future__ import annotations

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.comparison.eligibility import Cause, Causes, Misfit
from koordpolicy.engine.comparison.outcome import outcome
from koordpolicy.engine.comparison.shapes import FieldReads
from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, Settings
from koordpolicy.engine.scheduler.profiles.profile import PluginChoice, ProfileSpec

from .conftest import MEASURED, NOW, Policies, document, node, pod, refusals


def test_eligibility_is_told_by_kind_of_pod_with_the_rule_that_refuses_first(policies: Policies, cluster: Cluster):
    assert refusals(outcome(policies(MEASURED), cluster, now=NOW)) == {
        "shop/huge": dict.fromkeys(("cool", "hot", "small"), "resources"),
        "shop/new-1": {"hot": "below", "small": "resources"},
        "shop/web-1": {"hot": "below"},
        "kube-system/agent": {},
    }


def test_a_running_pod_whose_node_would_refuse_it_is_a_misfit_and_a_pod_of_the_system_is_not(
    policies: Policies, cluster: Cluster,
):
    found = outcome(policies(MEASURED), cluster, now=NOW)
    assert found.misfits == (Misfit("shop/web-2", "hot", Cause("cold", "below", "too hot")),)


def test_what_is_only_watched_refuses_nothing_and_is_counted(policies: Policies, cluster: Cluster):
    watched = document(
        "cold", "enforcement: Audit\nfilter: [{name: never, expression: 'nodeInfo.zone == \"z\"', message: no}]",
    )
    found = outcome(policies(watched), cluster, now=NOW)
    assert found.misfits == ()
    assert [
        {found.causes[number].rule: count for number, count in shape.watched.items()} for shape in found.shapes
    ] == [
        {}, {"never": 2}, {"never": 3}, {},  # no plugin is called for a node that is refused already
    ]


def test_pods_that_differ_in_what_an_expression_reads_are_of_two_kinds(policies: Policies, cluster: Cluster):
    by_name = document(
        "by-name", "filter: [{name: odd, expression: '!pod.metadata.name.endsWith(\"1\")', message: odd}]",
    )
    assert [shape.pods for shape in outcome(policies(by_name), cluster, now=NOW).shapes] == [
        ("shop/huge",), ("shop/new-1",), ("shop/new-2",), ("shop/new-3",), ("shop/web-1",), ("shop/web-2",),
        ("kube-system/agent",),
    ]
    assert [shape.pods for shape in outcome(policies(), cluster, now=NOW).shapes] == [
        ("shop/huge",), ("shop/new-1", "shop/new-2", "shop/new-3"), ("shop/web-1", "shop/web-2"),
        ("kube-system/agent",),
    ]


def test_a_rule_over_the_whole_cluster_sees_it_without_the_one_pod_that_is_asked_about(policies: Policies):
    even = document("even", """
aggregates: [{name: most, over: nodes, function: max, expression: nodeInfo.pods}]
filter: [{name: below-most, expression: "nodeInfo.pods < aggregates.most", message: full}]
""")
    cluster = Cluster([node("a"), node("b"), *(pod(f"a-{n}", on="a") for n in range(2)), pod("b-0", on="b")])
    # Without one of its pods `a` has one, as `b`; without the pod of `b`, `a` has two.
    found = outcome(policies(even), cluster, now=NOW)
    assert [each.pod for each in found.misfits] == ["shop/a-0", "shop/a-1"]


def test_replicas_that_keep_apart_are_each_asked_about_without_the_one_that_is_looked_at(policies: Policies):
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}},
    ]}}
    replicas = [pod(f"web-{name}", on=name, labels={"app": "web"}, affinity=apart) for name in ("a", "b")]
    cluster = Cluster([node("a", zone="a"), node("b", zone="b"), node("c", zone="c"), *replicas])
    settings = Settings((ProfileSpec(enabled=(PluginChoice("InterPodAffinity"),)),))
    found = outcome(policies(), cluster, now=NOW, settings=settings)
    assert (found.misfits, refusals(found)) == ((), {"shop/web-a": {}})


def test_pods_that_claim_different_volumes_are_of_two_kinds_where_volumes_are_looked_at(policies: Policies):
    def claim(name: str) -> dict[str, object]:
        return {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]}

    objects = [node("a", zone="a"), node("b", zone="b"), pod("db-0", **claim("of-a")), pod("db-1", **claim("of-b"))]
    for zone in "ab":
        objects += [
            {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {"name": f"of-{zone}", "namespace": "shop"}, "spec": {"volumeName": f"volume-{zone}"},
                "status": {"phase": "Bound"},
            },
            {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"volume-{zone}"}, "spec": {
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "zone", "operator": "In", "values": [zone]},
                ]}]}},
            }},
        ]
    how = Settings((ProfileSpec(enabled=(PluginChoice("VolumeBinding"),)),))
    found = outcome(policies(), Cluster(objects), now=NOW, settings=how)
    assert refusals(found) == {"shop/db-0": {"b": "volumes"}, "shop/db-1": {"a": "volumes"}}
    blind = frozenset({"VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone"})
    how = Settings((ProfileSpec(disabled={None: blind}),))
    found = outcome(policies(), Cluster(objects), now=NOW, settings=how)
    assert [each.pods for each in found.shapes] == [("shop/db-0", "shop/db-1")]


def test_pods_with_different_disks_are_of_two_kinds(policies: Policies):
    disks = [{"volumes": [{"name": "data", "awsElasticBlockStore": {"volumeID": name}}]} for name in "xyx"]
    objects = [node("a"), node("b"), pod("first", on="a", **disks[0]), pod("second", **disks[1]),
               pod("third", **disks[2])]
    found = outcome(policies(), Cluster(objects), now=NOW, settings=Settings())
    assert refusals(found) == {"shop/first": {}, "shop/second": {}, "shop/third": {"a": "disks"}}


def test_replicas_are_taken_off_their_nodes_at_once_unless_a_claim_is_for_one_pod(policies: Policies):
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": "shop"},
             "spec": {"accessModes": ["ReadWriteOncePod"], "volumeName": "disk"}, "status": {"phase": "Bound"}}
    disk = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk"}, "spec": {}}
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    cluster = Cluster([node("a"), node("b"), claim, disk, pod("web", on="a"), pod("db", on="a", volumes=volumes)])
    scheduler = Scheduler(cluster, Live(policies()), Settings(), clock=lambda: NOW)
    reading = FieldReads.of(scheduler.profiles)
    assert {key: reading.asks_alone(cluster.pod(key).unbound(), cluster.snapshot(NOW)) for key in (
        "shop/web", "shop/db")} == {"shop/web": True, "shop/db": False}
    scheduler.close()


def test_pods_that_are_spread_by_the_plugins_arguments_are_taken_off_their_nodes_one_by_one(policies: Policies):
    # Zone `b` has one pod more than `a`, which is allowed: without all of one kind at once it would have too many.
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web", "namespace": "shop"},
             "spec": {"selector": {"matchLabels": {"app": "web"}}}}
    pods = [pod(name, on=on, labels={"app": "web"}) for name, on in (("web-0", "a"), ("web-1", "b"), ("web-2", "b"))]
    for each in pods:
        each["metadata"]["ownerReferences"] = [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "owner", "controller": True},
        ]
    spread = {"defaultingType": "List", "defaultConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"},
    ]}
    how = Settings((ProfileSpec(enabled=(PluginChoice("PodTopologySpread", args=spread),)),))
    cluster = Cluster([node("a", zone="a"), node("b", zone="b"), owner, *pods])
    found = outcome(policies(), cluster, now=NOW, settings=how)
    assert found.misfits == ()
    assert [each.pods for each in found.shapes] == [("shop/web-0", "shop/web-1", "shop/web-2")]


def test_pods_that_are_refused_in_words_of_their_own_are_refused_for_one_cause(policies: Policies):
    whole = document("whole", "preFilter: [{name: team, expression: 'podInfo.name == \"x\"', message: no team, "
                              "messageExpression: \"podInfo.name + ' has no team'\"}]")
    found = outcome(policies(whole), Cluster([node("a"), pod("web-1"), pod("web-2"), pod("web-3", on="a")]), now=NOW)
    assert found.causes == (Cause("whole", "team", "no team"),)
    assert found.misfits == (Misfit("shop/web-3", "a", Cause("whole", "team", "no team")),)
    assert found.placements["shop/web-1"].reasons == {"web-1 has no team": 1}


def test_more_causes_than_can_be_told_apart_are_one_for_each_rule():
    causes = Causes(most=2)
    words = ["a", "b", "c", "a", "d"]
    assert [causes.number(Cause("p", "r", each)) for each in words] == [0, 1, 2, 0, 2]
    assert causes.number(Cause("p", "other", "e")) == 3
    assert [each.reason for each in causes.found] == ["a", "b", *["for one of too many reasons to tell them apart"] * 2]
