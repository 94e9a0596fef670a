from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.builtin_plugins.scheduler.reservation.args import check_args
from koordpolicy.builtin_plugins.scheduler.reservation.diagnosis import event_message, reasons
from koordpolicy.builtin_plugins.scheduler.reservation.fit import score
from koordpolicy.builtin_plugins.scheduler.reservation.matching import Counts
from koordpolicy.builtin_plugins.scheduler.reservation.scoring import normalize
from koordpolicy.builtin_plugins.scheduler.reservation.state import ReservationState
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo, ResourceList
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.framework.points import Code
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.loop import SchedulingLoop
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.scheduler.profiles.profile import PluginChoice, ProfileSpec
from koordpolicy.plugin import SKIP, Changed, CycleState, OnlyNodes
from koordpolicy.testing import FakeClock
from tests.fake_framework import FakeFramework, done

AFFINITY = "scheduling.koordinator.sh/reservation-affinity"
ALLOCATED = "scheduling.koordinator.sh/reservation-allocated"
REQUIRED = "scheduling.koordinator.sh/pre-allocation-required"
SECOND = 1_000_000_000
OWNERS = [{"labelSelector": {"matchLabels": {"app": "web"}}}]


def node(name="n", cpu="8", **labels):
    return {"kind": "Node", "metadata": {"name": name, "labels": labels},
            "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "10"}}}


def container(**requests):
    return {"containers": [{"name": "main", "resources": {"requests": requests}}]}


def reservation(name="r", on="n", cpu="4", *, labels=None, once=False, policy="", owners=None, requests=None, **spec):
    item = {
        "kind": "Reservation", "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels or {}},
        "spec": {"template": {"spec": container(**(requests or {"cpu": cpu}))}, "owners": owners or OWNERS, "ttl": "1h",
                 "allocateOnce": once, "allocatePolicy": policy, **spec},
    }
    if on:
        item["status"] = {"phase": "Available", "nodeName": on, "allocatable": requests or {"cpu": cpu}}
    return item


def pod(name="p", cpu="1", *, affinity=None, uses=None, labels=None, annotations=None, app="web", **spec):
    annotations = dict(annotations or {})
    if affinity is not None:
        annotations[AFFINITY] = json.dumps(affinity)
    if uses:
        annotations[ALLOCATED] = json.dumps({"name": uses, "uid": f"uid-{uses}"})
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "default", "uid": name, "annotations": annotations,
                                        "labels": {"app": app, **(labels or {})}},
            "spec": {**container(cpu=cpu), **spec}}


def begin(item, *objects, gates=(), **args):
    """The plugin, the state, the pod and the view that it is shown."""
    framework = FakeFramework(*objects, gates=gates)
    plugin = framework.make("Reservation", **args)
    state, info, snapshot = CycleState(), PodInfo.of(item), framework.snapshot()
    changed = plugin.before_pre_filter(state, info, snapshot)
    if isinstance(changed, Changed):
        snapshot = changed.snapshot
    return framework, plugin, state, info, snapshot


def refusal(item, *objects, name="n", **args):
    """Why a node refuses the pod, as reasons; empty where it does not."""
    framework, plugin, state, info, snapshot = begin(item, *objects, **args)
    answer = plugin.filter(state, info, snapshot, framework.rows)
    row = snapshot.index[name]
    return [] if answer.passed[row] else list(answer.reasons(np.array([row])))


def matched(item, *objects, name="n", **args):
    _, _, state, _, snapshot = begin(item, *objects, **args)
    return [info.name for info in state[ReservationState].of(snapshot, snapshot.index[name]).matched]


# What pods are shown


def test_what_is_reserved_is_free_for_its_owners_and_taken_for_all_others():
    objects = [node(), reservation(cpu="4")]
    framework, _, _, _, mine = begin(pod(), *objects)
    assert (framework.snapshot().requested("cpu").tolist(), mine.requested("cpu").tolist()) == ([4000], [0])
    framework, plugin, state, info, others = begin(pod(app="other"), *objects)
    assert others.requested("cpu").tolist() == [4000]
    assert plugin.pre_filter(state, info, others) is SKIP


def test_what_consumers_use_is_not_counted_twice():
    objects = [node(), reservation(cpu="4"), pod("c", "3", uses="r", nodeName="n")]
    framework, plugin, _, _, others = begin(pod(app="other"), *objects)
    assert (framework.snapshot().requested("cpu").tolist(), others.overridden) == ([4000], {})
    assert begin(pod(), *objects)[4].requested("cpu").tolist() == [3000]
    # One that has its node, and whose object does not say yet what it uses:
    framework.upsert(pod("late", "1"))
    late = framework.pod("default/late")
    plugin.cache.assume(late, "uid-r")
    framework.assume(late, "n")
    assert framework.snapshot().requested("cpu").tolist() == [5000]
    changed = plugin.before_pre_filter(CycleState(), PodInfo.of(pod(app="other")), framework.snapshot())
    assert changed.snapshot.requested("cpu").tolist() == [4000]


def test_consumers_that_use_more_than_was_reserved_count_with_all_they_use():
    objects = [node(), reservation(cpu="2", policy="Aligned"), pod("c", "3", uses="r", nodeName="n")]
    assert begin(pod(app="other"), *objects)[4].requested("cpu").tolist() == [3000]


def test_a_pod_without_any_reservation_in_the_cluster_is_shown_the_cluster_itself():
    framework, plugin, state, info, snapshot = begin(pod(), node())
    assert (plugin.pre_filter(state, info, snapshot), snapshot.overridden) == (SKIP, {})
    assert plugin.filter(state, info, snapshot, framework.rows).passed.all()


# Matching


def test_the_owners_of_a_reservation_are_alternatives_whose_parts_all_hold():
    both = [{"object": {"name": "p", "namespace": "default"}, "labelSelector": {"matchLabels": {"app": "web"}}}]
    assert matched(pod(), node(), reservation(owners=both)) == ["r"]
    assert matched(pod("q"), node(), reservation(owners=both)) == []
    assert matched(pod("q"), node(), reservation(owners=[*both, {}])) == ["r"]


def test_a_used_reservation_that_may_be_used_once_matches_nobody():
    objects = [node(), reservation(once=True), pod("c", uses="r", nodeName="n")]
    assert matched(pod(), *objects) == []
    assert matched(pod(), objects[0], reservation(once=True)) == ["r"]


@pytest.mark.parametrize(("tolerations", "found"), [
    (None, ["r"]), ([], []), ([{"key": "k", "operator": "Exists"}], ["r"]),
])
def test_taints_are_tolerated_by_pods_without_affinity_and_by_those_that_say_so(tolerations, found):
    tainted = reservation(taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}])
    affinity = None if tolerations is None else {"tolerations": tolerations}
    assert matched(pod(affinity=affinity), node(), tainted) == found


def test_an_unschedulable_reservation_is_not_used_even_by_pods_without_affinity_but_by_its_name():
    closed = reservation(unschedulable=True)
    assert matched(pod(), node(), closed) == []
    assert matched(pod(affinity={"name": "r"}), node(), closed) == ["r"]


def test_selectors_see_the_labels_of_the_node_under_those_of_the_reservation():
    objects = [node(zone="east"), reservation(labels={"tier": "gold"})]
    wanted = {"reservationSelector": {"zone": "east", "tier": "gold"}}
    assert matched(pod(affinity=wanted), *objects) == ["r"]
    assert matched(pod(affinity=wanted), *objects, gates={"OmitNodeLabelsForReservation"}) == []


def test_an_exact_match_compares_the_resources_that_it_names():
    exact = {"scheduling.koordinator.sh/exact-match-reservation": '{"resourceNames": ["cpu"]}'}
    assert matched(pod(cpu="4", annotations=exact), node(), reservation(cpu="4")) == ["r"]
    assert matched(pod(cpu="3", annotations=exact), node(), reservation(cpu="4")) == []


def test_reservations_on_nodes_that_the_pod_must_not_use_do_not_match():
    assert matched(pod(nodeSelector={"zone": "west"}), node(zone="east"), reservation()) == []


def test_an_affinity_narrows_the_choice_to_the_nodes_with_a_match():
    objects = [node("n"), node("m"), reservation(on="m")]
    _, plugin, state, info, snapshot = begin(pod(affinity={}), *objects)
    assert plugin.pre_filter(state, info, snapshot) == OnlyNodes(frozenset({"m"}))
    _, plugin, state, info, snapshot = begin(pod(affinity={"name": "gone"}), *objects)
    refused = plugin.pre_filter(state, info, snapshot)
    assert (refused.message, refused.code) == ("node(s) no reservations match reservation affinity", Code.UNRESOLVABLE)


def test_annotations_that_cannot_be_read_and_contradicting_fields_end_the_cycle():
    plugin = FakeFramework(node()).make("Reservation")
    framework = FakeFramework(node())
    broken = PodInfo.of(pod(annotations={AFFINITY: "{"}))
    assert plugin.before_pre_filter(CycleState(), broken, framework.snapshot()).code is Code.ERROR
    fields = [{"key": "metadata.name", "operator": "In", "values": [name]} for name in ("a", "b")]
    torn = pod(affinity=None) | {"spec": {**container(cpu="1"), "affinity": {"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": fields}]}}}}}
    refused = plugin.before_pre_filter(CycleState(), PodInfo.of(torn), framework.snapshot())
    assert (refused.message, refused.code) == ("pod affinity terms conflict", Code.UNRESOLVABLE)


# Filter


def test_a_default_reservation_may_be_exceeded_as_far_as_the_node_has_room():
    objects = [node(), reservation(cpu="4"), pod("other", "3", app="other", nodeName="n")]
    assert refusal(pod(cpu="5", affinity={}), *objects) == []
    assert refusal(pod(cpu="6", affinity={}), *objects) == ["Insufficient cpu by node"]


def test_a_restricted_reservation_bounds_those_that_need_it_and_lets_others_use_the_node():
    objects = [node(), reservation(cpu="4", policy="Restricted")]
    assert refusal(pod(cpu="5", affinity={}), *objects) == ["Reservation(s) Insufficient cpu"]
    assert refusal(pod(cpu="4", affinity={}), *objects) == []
    assert refusal(pod(cpu="4"), *objects) == []
    assert refusal(pod(cpu="5"), *objects) == ["Insufficient cpu by node"]


def test_several_restricted_reservations_give_a_reason_each_after_those_of_the_node():
    objects = [node(), reservation("a", cpu="4", policy="Restricted"), reservation("b", cpu="3", policy="Restricted")]
    assert refusal(pod(cpu="6", affinity={}), *objects) == [
        "Insufficient cpu by node", "Reservation(s) Insufficient cpu"]


def test_a_named_reservation_is_told_of_with_amounts():
    objects = [node(), reservation(cpu="4", policy="Restricted"), pod("c", "1", uses="r", nodeName="n")]
    assert refusal(pod(cpu="4", affinity={"name": "r"}), *objects) == [
        "Reservation(s) Insufficient cpu, requested: 4000, used: 1000, capacity: 4000"]


def test_pods_in_a_restricted_template_bound_how_many_may_use_it():
    objects = [node(), reservation(requests={"cpu": "4", "pods": "1"}, policy="Restricted"),
               pod("c", "1", uses="r", nodeName="n")]
    assert refusal(pod(affinity={}), *objects) == ["Reservation(s) Too many pods"]


def test_ignored_resources_are_not_looked_at():
    thing = {"cpu": "1", "example.com/thing": "1"}
    item = pod(affinity={})
    item["spec"] = container(**{**thing, "example.com/thing": "2"})
    objects = [node(), reservation(requests=thing, policy="Restricted")]
    assert refusal(item, *objects) == [
        "Insufficient example.com/thing by node", "Reservation(s) Insufficient example.com/thing",
    ]
    assert refusal(item, *objects, ignoredResources=["example.com/thing"]) == []
    assert refusal(item, *objects, ignoredResourceGroups=["example.com"]) == []


def test_a_pod_that_ignores_reservations_sees_all_as_free_and_uses_none():
    ignoring = pod(cpu="8", app="other", labels={"scheduling.koordinator.sh/reservation-ignored": "true"})
    framework, plugin, state, info, snapshot = begin(ignoring, node(), reservation())
    assert snapshot.requested("cpu").tolist() == [0]
    assert plugin.filter(state, info, snapshot, framework.rows).passed.all()
    assert plugin.reserve(state, info, snapshot, 0) is None
    assert plugin.cache.used_by(info) is None


def test_a_view_without_a_consumer_has_its_share_free():
    objects = [node(), reservation(cpu="4", policy="Restricted"), pod("c", "3", uses="r", nodeName="n")]
    framework, plugin, state, info, snapshot = begin(pod(cpu="2", affinity={}), *objects)
    assert not plugin.filter(state, info, snapshot, framework.rows).passed.all()
    without = snapshot.overlay({"n": NodeChange(remove=["default/c"])})
    assert plugin.filter(state, info, without, framework.rows).passed.all()


def test_reserve_pods_of_other_kinds_do_not_share_a_node():
    waiting = reservation("new", on="", policy="Restricted")
    framework = FakeFramework(node(), reservation(), waiting)
    plugin, state, snapshot = framework.make("Reservation"), CycleState(), framework.snapshot()
    info = framework.pod("default/uid-new")
    plugin.before_pre_filter(state, info, snapshot)
    answer = plugin.filter(state, info, snapshot, framework.rows)
    assert (answer.explain(0).message, answer.explain(0).code) == (
        "node(s) reservation allocate policy conflict", Code.UNRESOLVABLE)


# Nominating and scoring


def test_the_lowest_order_wins_then_the_fullest_reservation():
    objects = [node(), reservation("big", cpu="4"), reservation("small", cpu="2")]
    _, plugin, state, info, snapshot = begin(pod(cpu="2"), *objects)
    assert plugin.nominate(state, info, snapshot, 0).name == "small"
    ordered = reservation("big", cpu="4", labels={"scheduling.koordinator.sh/reservation-order": "7"})
    _, plugin, state, info, snapshot = begin(pod(cpu="2"), objects[0], ordered, objects[2])
    assert plugin.nominate(state, info, snapshot, 0).name == "big"


def test_the_node_of_the_lowest_order_leads_and_all_others_follow_far_behind():
    order = {"scheduling.koordinator.sh/reservation-order": "1"}
    objects = [
        node("a"), node("b"), node("c"), reservation("ra", on="a", cpu="2", labels=order),
        reservation("rb", on="b", cpu="4"),
    ]
    framework, plugin, state, info, snapshot = begin(pod(cpu="2"), *objects)
    plugin.pre_score(state, info, snapshot, framework.rows)
    assert plugin.raw_scores(state, info, snapshot, framework.rows) == {0: 1000, 1: 50}
    assert plugin.score(state, info, snapshot, framework.rows).values.tolist() == [100, 5, 0]


def test_a_score_counts_only_what_fits():
    assert score({"cpu": 2000, "memory": 4}, {"cpu": 1000}, ResourceList(cpu=4000, memory=3)) == 37
    assert (score({}, {}, ResourceList()), normalize({"a": 0})) == (0, {"a": 0})


# Reserve


def test_reserve_uses_the_reservation_and_unreserve_gives_it_back():
    framework, plugin, state, info, snapshot = begin(pod(), node(), reservation(), pod())
    assert plugin.reserve(state, info, snapshot, 0) is None
    draft = {"metadata": {"name": "p"}}
    assert plugin.pre_bind(state, info, draft, "n") is None
    assert json.loads(draft["metadata"]["annotations"][ALLOCATED]) == {"name": "r", "uid": "uid-r"}
    plugin.forget_nomination(info)
    framework.assume(framework.pod("default/p"), "n")
    assert plugin.cache.used_by(info).name == "r"
    plugin.unreserve(state, info, snapshot, 0)
    plugin.unreserve(state, info, snapshot, 0)
    framework.forget(framework.pod("default/p"))
    assert (plugin.cache.used_by(info), dict(plugin.cache.get("uid-r").consumers)) == (None, {})


def test_a_pod_that_uses_a_reservation_is_told_of_that_one_and_others_do_not_get_it():
    _, plugin, state, info, snapshot = begin(pod(), node(), reservation(once=True), pod())
    assert plugin.reserve(state, info, snapshot, 0) is None
    plugin.forget_nomination(info)
    assert plugin.nominate(state, info, snapshot, 0).name == "r"
    late = CycleState()
    other = PodInfo.of(pod("late"))
    plugin.before_pre_filter(late, other, snapshot)
    assert plugin.nominate(late, other, snapshot, 0) is None


def test_unreserve_takes_the_note_off_a_pod_that_was_not_bound():
    noted = pod(uses="r")
    framework, plugin, state, info, snapshot = begin(pod(), node(), reservation(), noted)
    plugin.unreserve(state, info, snapshot, 0)
    (_, written), = framework.client.patches
    assert written["metadata"]["annotations"] == {}


def test_a_pod_that_needs_a_reservation_and_gets_none_is_not_reserved():
    framework, plugin, state, info, snapshot = begin(pod(affinity={}), node(), reservation())
    framework.delete("Reservation", "r")
    state[ReservationState] = ReservationState(state[ReservationState].requirement)
    assert plugin.reserve(state, info, snapshot, 0).message == "node(s) no reservations match reservation affinity"


# Pre-allocation


def pre_allocation(**rest):
    return reservation("pre", on="", cpu="4", policy="Restricted", preAllocation=True, **rest)


def pre_allocated(*objects, **args):
    framework = FakeFramework(*objects)
    plugin, state, snapshot = framework.make("Reservation", **args), CycleState(), framework.snapshot()
    info = framework.pod("default/uid-pre")
    changed = plugin.before_pre_filter(state, info, snapshot)
    snapshot = changed.snapshot if isinstance(changed, Changed) else snapshot
    refused = plugin.pre_filter(state, info, snapshot)
    answer = plugin.filter(state, info, snapshot, framework.rows)
    told = None if answer.passed[0] else answer.explain(0).message
    return framework, plugin, state, info, snapshot, refused, told


def test_a_running_pod_makes_way_for_the_reservation_that_takes_it_over():
    running = [pod("a", "3", nodeName="n"), pod("b", "4", nodeName="n")]
    framework, plugin, state, info, snapshot, refused, told = pre_allocated(node(cpu="8"), *running, pre_allocation())
    assert (refused, told, snapshot.requested("cpu").tolist()) == (None, None, [0])
    assert plugin.reserve(state, info, snapshot, 0) is None
    assert [name for name in ("a", "b") if plugin.cache.uses(framework.pod(f"default/{name}")) == "uid-pre"] == ["b"]
    draft = {"metadata": {"name": "pre", "uid": "uid-pre"}}
    assert done(plugin.pre_bind_reservation(state, draft, "n")) is None
    (_, written), = framework.client.patches
    assert json.loads(written["metadata"]["annotations"][ALLOCATED]) == {"name": "pre", "uid": "uid-pre"}
    plugin.unreserve(state, info, snapshot, 0)
    assert plugin.cache.uses(framework.pod("default/b")) == ""


def test_a_pod_too_large_for_the_reservation_or_too_small_for_the_node_is_not_taken_over():
    required = {REQUIRED: "true"}
    *_, told = pre_allocated(node(cpu="8"), pod("a", "5", nodeName="n"), pre_allocation(labels=required))
    assert told == "Reservation(s) Insufficient cpu"
    running = [pod("a", "1", nodeName="n"), pod("b", "7", app="other", nodeName="n")]
    *_, told = pre_allocated(node(cpu="8"), *running, pre_allocation(labels=required))
    assert told == "Insufficient cpu by node"
    *_, refused, told = pre_allocated(node(), pre_allocation(labels=required))
    assert (refused.message, told) == (
        "node(s) no pod match reservation with pre allocation required",
        "node(s) no pod(s) to meet the pre-allocation requirements")


def test_several_pods_are_taken_over_where_that_is_allowed():
    running = [pod("a", "2", nodeName="n"), pod("b", "2", nodeName="n"), pod("c", "4", app="other", nodeName="n")]
    many = pre_allocation(preAllocationPolicy={"enableMultiple": True})
    framework, plugin, state, info, snapshot, _, told = pre_allocated(node(cpu="8"), *running, many)
    assert told is None
    plugin.pre_score(state, info, snapshot, framework.rows)
    assert plugin.raw_scores(state, info, snapshot, framework.rows) == {0: 33}


@pytest.mark.parametrize(("change", "message"), [
    ({"allocatePolicy": "Aligned"}, "node(s) reservation pre allocation is unsupported with current attributes"),
    (
        {"preAllocationPolicy": {"mode": "Cluster"}},
        "reservation requires cluster mode pre-allocation which is disabled",
    ),
])
def test_pre_allocation_that_cannot_be_is_refused(change, message):
    item = pre_allocation()
    item["spec"] |= change
    *_, refused, told = pre_allocated(node(), item)
    assert (refused.message, refused.code, told) == (message, Code.UNRESOLVABLE, message)


def test_cluster_mode_takes_labelled_pods_by_their_priority():
    def labelled(name, priority):
        return pod(name, "2", app="other", labels={"pod.koordinator.sh/is-pre-allocatable": "true"}, nodeName="n",
                   annotations={"pod.koordinator.sh/pre-allocatable-priority": priority})

    item = pre_allocation(preAllocationPolicy={"mode": "Cluster"})
    config = {"preAllocationConfig": {"enableClusterMode": True}}
    _, _, state, *_ = pre_allocated(node(), labelled("a", "1"), labelled("b", "5"), item, **config)
    assert [each.name for each in state[ReservationState].nodes["n"].candidates] == ["b", "a"]


def test_a_hint_says_what_may_help_a_refused_pod():
    framework = FakeFramework(node(), reservation(), pod("r", app="other", nodeName="n"), pod())
    plugin, heard = framework.make("Reservation"), []
    framework.on(("Pod", "Node", "Reservation"),
                 lambda event: heard.append((event.key, plugin.may_help(event, PodInfo.of(pod())))))
    heard.clear()
    framework.delete("Pod", "default/r")
    framework.upsert(pod("new"))
    framework.upsert(pod(labels={"a": "b"}))
    framework.upsert(node("m"))
    framework.upsert(reservation("s"))
    assert heard[:4] == [("default/r", True), ("default/new", False), ("default/p", True), ("m", True)]
    assert ("s", True) in heard


# Through the whole loop


def start(*objects, **args):
    clock = FakeClock(1000 * SECOND)
    spec = ProfileSpec(enabled=(PluginChoice("Reservation", args=args), PluginChoice("DefaultPreBind")))
    cluster = Cluster(objects)
    loop = SchedulingLoop(cluster, Live(Registry.of(PLUGINS, generation=1)), Settings(profiles=(spec,)), clock=clock)
    return loop, cluster, clock


def test_a_reservation_gets_a_node_its_owner_uses_it_and_others_stay_away():
    loop, cluster, _ = start(node(cpu="4"), reservation(on="", cpu="3"), pod("other", "2", app="other"))
    verdicts = {verdict.pod.name: verdict for verdict in loop.schedule_all()}
    assert cluster.object("Reservation", "r")["status"]["phase"] == "Available"
    assert (verdicts["uid-r"].node, verdicts["other"].node) == ("n", None)
    cluster.upsert(pod("mine", "2"))
    assert [(verdict.pod.name, verdict.node) for verdict in loop.schedule_all()] == [("mine", "n")]
    noted = cluster.object("Pod", "default/mine")["metadata"]["annotations"][ALLOCATED]
    assert (json.loads(noted)["name"], loop.failures) == ("r", [])
    cluster.upsert(pod("small", "1", app="other"))
    assert [(verdict.pod.name, verdict.node) for verdict in loop.schedule_all()] == [("small", "n")]
    cluster.upsert(pod("more", "1", app="other"))
    assert [verdict.node for verdict in loop.schedule_all() if verdict.pod.name == "more"] == [None]


def test_a_reservation_without_room_waits_and_says_why():
    loop, cluster, clock = start(node(cpu="2"), reservation(on="", cpu="3"))
    [*loop.schedule_all()]
    condition, = cluster.object("Reservation", "r")["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Scheduled", "False", "Unschedulable")
    clock.now += 60 * SECOND
    cluster.upsert(node("big"))
    [*loop.schedule_all()]
    assert cluster.object("Reservation", "r")["status"]["nodeName"] == "big"


def test_a_deleted_reservation_leaves_its_place():
    loop, cluster, _ = start(node(cpu="4"), reservation(cpu="4"), pod("other", "2", app="other"))
    assert [verdict.node for verdict in loop.schedule_all()] == [None]
    cluster.delete("Reservation", "r")
    assert cluster.snapshot().requested("cpu").tolist() == [0]


def test_reservations_may_be_a_gang():
    label = {"pod-group.scheduling.sigs.k8s.io": "g"}
    spec = ProfileSpec(
        enabled=(PluginChoice("Reservation"), PluginChoice("Coscheduling"), PluginChoice("DefaultPreBind")),
    )
    group = {"kind": "PodGroup", "metadata": {"name": "g", "namespace": "default"}, "spec": {"minMember": 2}}
    both = [reservation(name, on="", cpu="3", labels=label) for name in ("r", "s")]
    cluster, clock = Cluster([node(cpu="4"), group, *both]), FakeClock(1000 * SECOND)
    loop = SchedulingLoop(cluster, Live(Registry.of(PLUGINS, generation=1)), Settings(profiles=(spec,)), clock=clock)
    [*loop.schedule_all()]
    assert not any(cluster.object("Reservation", name).get("status", {}).get("nodeName") for name in ("r", "s"))
    cluster.upsert(node("m", cpu="4"))
    for _ in range(4):
        clock.now += 20 * SECOND
        [*loop.schedule_all()]
    found = [cluster.object("Reservation", name) for name in ("r", "s")]
    assert sorted(item["status"]["nodeName"] for item in found) == ["m", "n"]
    assert found[0]["metadata"]["annotations"]["internal.scheduling.koordinator.sh/bind-gang-group-id"] == "default/g"


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["web", "other"]), st.integers(1, 4)), max_size=6), st.integers(1, 5),
       st.sampled_from(["", "Aligned", "Restricted"]))
def test_no_node_is_ever_given_more_than_it_has_and_what_is_reserved_stays_for_its_owners(pods, cpu, policy):
    loop, cluster, _ = start(node(cpu="6"), reservation(cpu=str(cpu), policy=policy))
    for number, (app, amount) in enumerate(pods):
        cluster.upsert(pod(f"p{number}", str(amount), app=app))
    [*loop.schedule_all()]
    running = [(name, amount) for number, (name, amount) in enumerate(pods)
               if cluster.pod(f"default/p{number}").node_name]
    users = [number for number in range(len(pods))
             if ALLOCATED in cluster.object("Pod", f"default/p{number}")["metadata"]["annotations"]]
    used = sum(pods[number][1] for number in users)
    assert all(pods[number][0] == "web" for number in users)
    assert sum(amount for _, amount in running) - used + max(cpu, used) <= 6
    assert policy != "Restricted" or used <= cpu
    assert loop.failures == []


# Words


def test_reasons_are_counted_over_nodes_and_node_reasons_stand_for_all_that_was_usable():
    counts = {
        "a": Counts(owner_matched=3, affinity_unmatched=1),
        "b": Counts(owner_matched=1, tainted=1, taints={"{k: v}": 1}),
    }
    told = reasons(counts, {"a": ["Insufficient cpu by node", "Reservation(s) Insufficient cpu"]}, has_affinity=False)
    assert told == [
        "1 Reservation(s) didn't match affinity rules", "1 Reservation(s) had untolerated taint {k: v}",
        "1 Reservation(s) for node reason that Insufficient cpu by node", "4 Reservation(s) matched owner total"]


def test_the_event_of_a_pod_is_cut_out_of_its_error():
    error = ("0/3 nodes are available: 3 Insufficient cpu. 2 Reservation(s) for node reason that Insufficient cpu, "
             "1 Reservation(s) is unschedulable, 4 Reservation(s) didn't match the requested reservation name, "
             "7 Reservation(s) matched owner total.")
    assert event_message(error) == (
        "0/7 reservations are available: 4 Reservation(s) didn't match the requested reservation name, "
        "1 Reservation(s) is unschedulable, 2 Reservation(s) Insufficient cpu.")
    assert event_message("0/3 nodes are available: 3 Insufficient cpu.") == ""


def test_endpoints_tell_of_the_reservations_of_a_node():
    framework = FakeFramework(node(), reservation(cpu="4"), pod("c", "1500m", uses="r", nodeName="n"))
    endpoints = framework.make("Reservation").endpoints()
    item, = endpoints["nodeReservations/{nodeName}"]("n")["items"]
    assert endpoints["reservationSelectorIndex"](detail="true") == {
        "owners": 1, "reservations": 1, "byOwners": {json.dumps(OWNERS, sort_keys=True): ["r"]}}
    assert (item["name"], item["kind"], item["allocated"], item["assignedPods"]) == (
        "r", "Reservation", {"cpu": "1500m"}, ["default/c"])


@pytest.mark.parametrize(("args", "complaint"), [
    ({"minCandidateNodesPercentage": 101}, "`minCandidateNodesPercentage` is 101: it must lie within 0 and 100"),
    ({"gcDurationSeconds": -1}, "`gcDurationSeconds` is -1: it must not be below 0"),
    ({"ignoredResources": ["cpu"]}, r"`ignoredResources\[0\]` is `cpu`"),
    ({"ignoredResourceGroups": ["a/b"]}, r"`ignoredResourceGroups\[0\]` is `a/b`: a group has no `/`"),
    ({"ignoredResourceGroups": ["kubernetes.io"]}, "must be the domain of extended resources"),
    ({"preAllocationConfig": {"x": 1}}, "there is no argument `x` at `preAllocationConfig`"),
])
def test_arguments_that_cannot_be_are_refused_with_their_place(args, complaint):
    with pytest.raises(ValueError, match=complaint):
        check_args(args)


def test_a_reservation_that_is_used_once_is_used_up_with_its_first_pod():
    loop, cluster, clock = start(node(cpu="4"), reservation(on="", cpu="3", once=True), pod("mine", "1"))
    [*loop.schedule_all()]
    for _ in range(3):
        clock.now += 60 * SECOND
        [*loop.schedule_all()]
    status = cluster.object("Reservation", "r")["status"]
    assert (status["phase"], [owner["name"] for owner in status["currentOwners"]]) == ("Succeeded", ["mine"])
    assert cluster.snapshot().requested("cpu").tolist() == [1000]
