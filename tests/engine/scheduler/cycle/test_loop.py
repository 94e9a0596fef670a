from __future__ import annotations

import numpy as np
import pytest

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.points import Answer, Code, Framework, Point, Refusal, Scores
from koordpolicy.engine.framework.registry import Live, Plugin, Registry
from koordpolicy.engine.scheduler.cycle.loop import SchedulingLoop
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, Settings
from koordpolicy.engine.source import Source
from koordpolicy.plugin import SKIP, Changed, ForgetPod, Nomination, OnlyNodes, Permit, Wait
from koordpolicy.testing import FakeClock

SECOND = 1_000_000_000

ZONE_POLICY = """
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: in-zone}
spec:
  filter:
  - {name: zone, expression: "node.metadata.labels['zone'] == pod.metadata.labels['zone']"}
"""
GATE_POLICY = """
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: approved}
spec:
  preEnqueue:
  - {name: approved, expression: "has(pod.metadata.labels) && 'approved' in pod.metadata.labels", message: not approved}
"""


def node(name, **labels):
    return {
        "kind": "Node", "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}},
    }


def pod(name, priority=0, **labels):
    spec = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}], "priority": priority}
    return {"kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def plugin(name, instance, *points, **rest):
    return Plugin(
        name, Framework.SCHEDULER, points,
        lambda args, handle: instance(handle) if isinstance(instance, type) else instance, name, name, **rest,
    )


def documents(text):
    return compile_documents(load([Source("policies.yaml", text)]))


@pytest.fixture
def clock():
    return FakeClock(1000 * SECOND)


@pytest.fixture
def start(clock):
    def start(*plugins, objects=(), settings=None):
        concluded = []
        loop = SchedulingLoop(
            Cluster(objects), Live(Registry.of(plugins, generation=1)), settings, clock=clock,
            concluded=concluded.append,
        )
        loop.told = concluded
        return loop

    return start


def placed(loop):
    return [(verdict.pod.name, verdict.node) for verdict in loop.schedule_all()]


def test_the_pods_of_the_cluster_are_placed_by_priority_and_those_that_come_later_too(start):
    loop = start(objects=[node("a"), pod("p"), pod("urgent", 9)])
    assert placed(loop) == [("urgent", "a"), ("p", "a")]
    loop.scheduler.cluster.upsert(pod("q"))
    assert placed(loop) == [("q", "a")]
    assert loop.queue.counts() == {"active": 0, "backoff": 0, "unschedulable": 0, "gated": 0}


def test_a_pod_that_a_document_refused_waits_for_what_its_expression_reads(start, clock):
    loop = start(*documents(ZONE_POLICY), objects=[node("a", zone="east"), pod("p", zone="west")])
    assert placed(loop) == [("p", None)]
    clock.advance(60)
    loop.scheduler.cluster.upsert({**node("a", zone="east"), "spec": {"unschedulable": True}})
    loop.scheduler.cluster.upsert(node("b", zone="east"))
    assert [verdict.node for verdict in loop.schedule_all()] == [None]  # a new node concerns everybody
    clock.advance(60)
    loop.scheduler.cluster.upsert(node("b", zone="west"))
    assert placed(loop) == [("p", "b")]


def test_verdicts_about_placed_pods_may_be_kept_where_that_is_asked_for(clock):
    class Full(Fits):
        def filter(self, state, pod, snapshot, rows):
            passed = snapshot.pod_count == 0
            return Answer(passed, lambda row: Refusal("", f"{snapshot.pod_count[row]} pods"))

    registry = Registry.of([plugin("Full", Full(), Point.FILTER)], generation=1)
    objects = [*(node(name) for name in "abc"), *(pod(f"p{number}") for number in range(3))]
    loop = SchedulingLoop(Cluster(objects), Live(registry), clock=clock, explained=True)
    last = list(loop.schedule_all())[-1]
    assert [(each.reason, each.nodes) for each in last.refusals()] == [("1 pods", ("a", "b"))]


def test_a_gated_pod_is_not_looked_at_until_it_changes(start, clock):
    loop = start(*documents(GATE_POLICY), objects=[node("a"), pod("p")])
    clock.advance(3600)
    loop.scheduler.cluster.upsert(node("b"))
    assert (placed(loop), loop.queue.counts()["gated"]) == ([], 1)
    loop.scheduler.cluster.upsert(pod("p", approved="yes"))
    assert placed(loop) == [("p", "a")]


def test_other_policies_give_every_refused_pod_another_try(start, clock):
    live = Live(Registry.of(documents(ZONE_POLICY), generation=1))
    loop = SchedulingLoop(Cluster([node("a", zone="east"), pod("p", zone="west")]), live, clock=clock)
    assert placed(loop) == [("p", None)]
    clock.advance(5)
    live.replace(tuple)
    assert placed(loop) == [("p", "a")]


class Gang:
    """Holds pods until there are three of them."""

    def __init__(self, handle):
        self.handle, self.log = handle, []

    def permit(self, state, pod, snapshot, row):
        if len(self.handle.waiting.keys()) < 2:
            return Wait(30 * SECOND)
        for key in tuple(self.handle.waiting.keys()):
            self.handle.waiting.allow(key, "Gang")
        return None

    def reserve(self, state, pod, snapshot, row):
        return None

    def unreserve(self, state, pod, snapshot, row):
        self.log.append(("unreserve", pod.name))

    def forget_pod(self, pod):
        self.log.append(("forget", pod.name))

    def post_bind(self, state, pod, node):
        self.log.append(("bound", pod.name, node))


def gang_of(start, count):
    made = []

    def make(args, handle):
        made.append(Gang(handle))
        return made[-1]

    points = (Point.RESERVE, Point.PERMIT, Point.POST_BIND)
    loop = start(
        Plugin("Gang", Framework.SCHEDULER, points, make, "Gang", "Gang"),
        objects=[node("a"), *(pod(f"p{number}") for number in range(count))],
    )
    return loop, made[0]


def test_a_permit_holds_pods_until_the_last_of_them_lets_all_go(start):
    loop, gang = gang_of(start, 3)
    verdicts = list(loop.schedule_all())
    assert [(verdict.node, verdict.waiting) for verdict in verdicts] == [("a", True), ("a", True), ("a", False)]
    assert gang.log == [("bound", "p2", "a"), ("bound", "p0", "a"), ("bound", "p1", "a")]
    assert [(verdict.pod.name, verdict.node, verdict.waiting) for verdict in loop.told] == [
        ("p0", "a", False), ("p1", "a", False),
    ]


def test_a_pod_that_waits_for_too_long_gives_its_node_back_and_tries_again(start, clock):
    loop, gang = gang_of(start, 2)
    list(loop.schedule_all())
    clock.now = loop.next_time()
    loop.scheduler.process_bindings()
    assert [(verdict.pod.name, verdict.node, verdict.refusal[2].message) for verdict in loop.told] == [
        ("p0", None, "timeout after waiting for other pods"), ("p1", None, "timeout after waiting for other pods"),
    ]
    assert gang.log == [("unreserve", "p0"), ("forget", "p0"), ("unreserve", "p1"), ("forget", "p1")]
    assert loop.scheduler.cluster.snapshot(0).pod_count.tolist() == [0]
    assert len(loop.queue) == 2


class Preempts:
    def __init__(self, handle):
        self.asked = []

    def post_filter(self, state, pod, snapshot, refused):
        rows = refused.resolvable()
        self.asked.append([snapshot.names[row] for row in rows])
        for row in rows.tolist():
            name = snapshot.names[row]
            victims = [each for each in snapshot.pods(row) if each.priority < pod.priority]
            emptied = snapshot.overlay({name: NodeChange(remove=[each.key for each in victims])})
            if len(refused.passes(emptied, rows[rows == row])):
                return Nomination(name, tuple(victims))
        return Refusal("", "nobody of lower priority is in the way")


class Fits:
    def filter(self, state, pod, snapshot, rows):
        free = snapshot.allocatable("cpu") - snapshot.requested("cpu")
        return Answer(free >= pod.requests["cpu"], lambda row: Refusal("", "Insufficient cpu"))


def test_a_pod_without_a_node_may_take_the_place_of_lesser_ones(start, clock):
    running = {
        **pod("low", 1),
        "spec": {
            **pod("low", 1)["spec"], "nodeName": "a",
            "containers": [{"name": "m", "resources": {"requests": {"cpu": "4"}}}],
        },
    }
    loop = start(
        plugin("Fits", Fits(), Point.FILTER), plugin("Preempts", Preempts, Point.POST_FILTER),
        objects=[node("a"), running, pod("high", 9), pod("other", 5)],
    )
    first, second = loop.schedule_one(), loop.schedule_one()
    assert (first.pod.name, first.node, first.nomination.node, [each.name for each in first.nomination.victims]) == (
        "high", None, "a", ["low"],
    )
    assert loop.scheduler.client.evicted == [("default/low", "preempted by default/high on a")]
    assert first.to_json()["nomination"] == {"node": "a", "victims": ["default/low"]}
    assert (second.pod.name, second.node) == ("other", "a")  # there is room beside the one that is nominated
    clock.advance(1)
    assert placed(loop) == [("high", "a")]
    assert loop.scheduler.nominations.nominated("a") == ()


def test_a_nominated_node_must_take_a_lesser_pod_beside_the_nominated_one(kit):
    scheduler = Scheduler(Cluster([node("a"), node("b")]), kit.live(plugin("Fits", Fits(), Point.FILTER)))
    big = kit.pod("big", cpu="4", priority=5)
    scheduler.nominations.nominate(big, "a")
    assert scheduler.decide(kit.pod("lesser", cpu="1", priority=5)).node == "b"
    assert scheduler.decide(kit.pod("greater", cpu="1", priority=6)).node == "a"
    assert scheduler.decide(big).node == "a"


class Chain:
    """Writes down everything that it is asked, in order; answers as it is told."""

    def __init__(self, answers=None):
        self.log, self.answers = [], answers or {}

    def _ask(self, point, default=None):
        self.log.append(point)
        return self.answers.get(point, default)

    def before_pre_filter(self, state, pod, snapshot):
        return self._ask("beforePreFilter")

    def pre_filter(self, state, pod, snapshot):
        return self._ask("preFilter")

    def after_pre_filter(self, state, pod, snapshot, rows):
        return self._ask("afterPreFilter")

    def before_filter(self, state, pod, snapshot, rows):
        return self._ask("beforeFilter")

    def filter(self, state, pod, snapshot, rows):
        return self._ask("filter", Answer(np.ones(snapshot.size, np.bool_)))

    def after_filter(self, state, pod, snapshot, rows):
        return self._ask("afterFilter")

    def post_filter(self, state, pod, snapshot, refused):
        return self._ask("postFilter")

    def after_post_filter(self, state, pod, snapshot, refused, nomination):
        self._ask("afterPostFilter")

    def pre_score(self, state, pod, snapshot, rows):
        return self._ask("preScore")

    def before_score(self, state, pod, snapshot, rows):
        return self._ask("beforeScore")

    def score(self, state, pod, snapshot, rows):
        return self._ask("score", Scores(np.zeros(snapshot.size, np.int64)))

    def nominate_reservation(self, state, pod, snapshot, row):
        return self._ask("nominateReservation")

    def forget_nomination(self, pod):
        self._ask("forgetNomination")

    def reserve(self, state, pod, snapshot, row):
        return self._ask("reserve")

    def unreserve(self, state, pod, snapshot, row):
        self._ask("unreserve")

    def forget_pod(self, pod):
        self._ask("forgetPod")

    def permit(self, state, pod, snapshot, row):
        return self._ask("permit")

    def pre_bind(self, state, pod, draft, node):
        draft["metadata"].setdefault("annotations", {})["who"] = "chain"
        return self._ask("preBind")

    def apply_patch(self, state, original, modified):
        self.patched = (original["metadata"].get("annotations"), modified["metadata"]["annotations"])
        return self._ask("applyPatch")

    def bind(self, state, pod, node):
        return self._ask("bind")

    def post_bind(self, state, pod, node):
        self._ask("postBind")


_ALL = (
    Point.PRE_FILTER, Point.FILTER, Point.POST_FILTER, Point.PRE_SCORE, Point.SCORE, Point.RESERVE, Point.PERMIT,
    Point.PRE_BIND,
    Point.BIND, Point.POST_BIND,
)
_SCORED = [
    "beforePreFilter", "preFilter", "afterPreFilter", "beforeFilter", "filter", "afterFilter", "preScore",
    "beforeScore", "score",
    "nominateReservation",
]
_RESERVED = [*_SCORED, "reserve", "forgetNomination", "permit"]


def run(kit, answers=None, names="ab"):
    chain = Chain(answers)
    cluster = kit.cluster(*names)
    verdict = Scheduler(cluster, kit.live(plugin("Chain", chain, *_ALL))).schedule(kit.pod())
    return chain, verdict, cluster


def test_all_points_are_asked_in_the_order_of_the_cycle(kit):
    chain, verdict, _ = run(kit)
    assert chain.log == [*_RESERVED, "preBind", "applyPatch", "bind", "postBind"]
    assert (verdict.node, chain.patched) == ("a", (None, {"who": "chain"}))


def test_scores_are_left_out_where_one_node_is_left(kit):
    chain, _, _ = run(kit, names="a")
    assert chain.log[5:8] == ["afterFilter", "nominateReservation", "reserve"]


NO = Refusal("", "no")
ERROR = Refusal("", "broken", Code.ERROR)
_ROOM = ["postFilter", "afterPostFilter"]
_GIVEN_BACK = ["unreserve", "forgetPod"]


@pytest.mark.parametrize(("point", "refusal", "log"), [
    ("beforePreFilter", NO, ["beforePreFilter", *_ROOM]),
    ("preFilter", NO, [*_SCORED[:2], *_ROOM]),
    ("preFilter", ERROR, _SCORED[:2]),
    ("afterPreFilter", NO, [*_SCORED[:3], *_ROOM]),
    ("beforeFilter", NO, [*_SCORED[:4], *_ROOM]),
    ("afterFilter", NO, [*_SCORED[:6], *_ROOM]),
    ("preScore", ERROR, _SCORED[:7]),
    ("beforeScore", ERROR, _SCORED[:8]),
    ("nominateReservation", ERROR, _SCORED),
    ("reserve", NO, [*_SCORED, "reserve", *_GIVEN_BACK, "forgetNomination"]),
    ("permit", NO, [*_RESERVED, *_GIVEN_BACK]),
    ("preBind", NO, [*_RESERVED, "preBind", *_GIVEN_BACK]),
    ("applyPatch", ERROR, [*_RESERVED, "preBind", "applyPatch", *_GIVEN_BACK]),
    ("bind", ERROR, [*_RESERVED, "preBind", "applyPatch", "bind", *_GIVEN_BACK]),
])
def test_whoever_refuses_ends_the_cycle_and_gives_everything_back(kit, point, refusal, log):
    chain, verdict, cluster = run(kit, {point: refusal})
    assert chain.log == log
    assert (verdict.node, verdict.refusal[0], verdict.refusal[2]) == (None, "Chain", refusal)
    assert cluster.snapshot(0).pod_count.tolist() == [0, 0]


def test_a_plugin_that_raises_anywhere_ends_the_cycle_with_its_failure(kit):
    class Broken(Chain):
        def _ask(self, point, default=None):
            super()._ask(point)
            if point == self.answers["at"]:
                raise RuntimeError("broken")
            return default

    for at in (
        "beforePreFilter", "afterPreFilter", "preScore", "nominateReservation", "reserve", "permit", "preBind", "bind",
    ):
        cluster = kit.cluster("a", "b")
        verdict = Scheduler(cluster, kit.live(plugin("Chain", Broken({"at": at}), *_ALL))).schedule(kit.pod())
        assert (verdict.node, verdict.refusal[2].code, verdict.failures[0].message) == (
            None, Code.ERROR, "RuntimeError: broken",
        ), at
        assert cluster.snapshot(0).pod_count.tolist() == [0, 0]


def test_a_pre_filter_may_skip_its_filter_and_a_pre_score_its_score(kit):
    chain, verdict, _ = run(kit, {"preFilter": SKIP, "preScore": SKIP})
    assert ("filter" in chain.log, "score" in chain.log, verdict.node) == (False, False, "a")


def test_pre_filters_may_narrow_the_nodes_and_only_what_all_of_them_leave_is_asked(kit):
    first, second = Chain({"preFilter": OnlyNodes(frozenset("bc"))}), Chain({"preFilter": OnlyNodes(frozenset("ac"))})
    plugins = [plugin("1", first, Point.PRE_FILTER), plugin("2", second, Point.PRE_FILTER)]
    verdict = Scheduler(kit.cluster("a", "b", "c"), kit.live(*plugins)).schedule(kit.pod())
    assert verdict.node == "c"
    assert verdict.reasons() == {"node(s) didn't satisfy plugin(s) [1 2]": 2}


def test_a_transformer_may_show_the_plugins_another_cluster(kit):
    cluster = kit.cluster("a", "b")
    full = kit.pod("full", cpu="4")

    class Shows(Chain):
        def before_pre_filter(self, state, pod, snapshot):
            return Changed(snapshot=snapshot.overlay({"a": NodeChange(add=[full])}))

    plugins = [plugin("Shows", Shows(), Point.PRE_FILTER), plugin("Fits", Fits(), Point.FILTER)]
    assert Scheduler(cluster, kit.live(*plugins)).decide(kit.pod()).node == "b"


def test_plugins_hear_of_what_there_is_and_of_what_changes(kit):
    heard = []

    class Listens(Chain):
        def __init__(self, handle):
            super().__init__()
            handle.events.on(
                ["Node", "Pod"], lambda event: heard.append((event.kind, event.key, event.old is None, event.assumed)),
            )

    cluster = kit.cluster("a")
    scheduler = Scheduler(cluster, kit.live(plugin("Listens", Listens, Point.PRE_FILTER)))
    scheduler.schedule(kit.pod("p"))
    cluster.upsert(kit.node("b"))
    cluster.delete("Pod", "default/p")
    assert heard == [
        ("Node", "a", True, False), ("Pod", "default/p", True, True), ("Node", "b", True, False),
        ("Pod", "default/p", True, False),
    ]


def test_a_plugin_of_an_earlier_generation_hears_no_more(kit):
    heard = []

    class Listens(Chain):
        def __init__(self, handle):
            super().__init__()
            handle.events.on(["Node"], lambda event: heard.append(event.key))

    cluster, live = kit.cluster("a"), kit.live(plugin("Listens", Listens, Point.PRE_FILTER))
    scheduler = Scheduler(cluster, live)
    scheduler.schedule(kit.pod("p"))
    live.replace(tuple)
    scheduler.schedule(kit.pod("q"))
    cluster.upsert(kit.node("b"))
    assert heard == ["a"]


def test_plugins_find_each_other_by_what_they_can_do(kit):
    found = []

    class Asks(Chain):
        def __init__(self, handle):
            super().__init__()
            self.handle = handle

        def pre_filter(self, state, pod, snapshot):
            found.append([each is self for each in self.handle.peers(ForgetPod)] + [len(self.handle.peers(Permit))])

    Scheduler(
        kit.cluster("a"), kit.live(plugin("Asks", Asks, Point.PRE_FILTER), plugin("Gang", Gang, Point.PERMIT)),
    ).decide(kit.pod())
    assert found == [[True, False, 2]]


def test_the_log_shows_the_best_nodes_and_who_refused_the_others_where_that_is_switched_on(kit, caplog):
    plugins = [kit.plugin("F", kit.refuses("c")), kit.plugin("S", kit.gives(a=10, b=20))]
    scheduler = Scheduler(kit.cluster("a", "b", "c"), kit.live(*plugins))
    scheduler.debug.top_scores, scheduler.debug.filters = 1, True
    with caplog.at_level("INFO", "koordpolicy.scheduler"):
        scheduler.schedule(kit.pod("p"))
    assert caplog.messages == [
        "filter: pod=default/p plugin=F reason='no c' nodes=c", "score: pod=default/p node=b total=20 S=20",
    ]


def test_a_pod_that_is_being_deleted_or_was_handed_to_another_scheduler_is_not_bound(kit):
    for change, message in (
        ({"metadata": {"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"}}, "pod is being deleted"),
        ({"spec": {"schedulerName": "other", "containers": [{"name": "m"}]}}, "schedulerName unmatched"),
    ):
        cluster = kit.cluster("a")
        waiting = kit.pod("p")
        cluster.upsert({**waiting.object, **change})
        verdict = Scheduler(cluster, kit.live(plugin("Chain", Chain(), *_ALL)), Settings()).schedule(waiting)
        assert (verdict.node, verdict.refusal[2].message) == (None, message)
