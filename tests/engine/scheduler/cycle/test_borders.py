"""A fault of a plugin is that plugin's failure, and no pod is lost or bound twice."""

from __future__ import annotations

import numpy as np
import pytest

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.points import Answer, CacheKey, Code, Framework, Point, Refusal, Scores
from koordpolicy.engine.framework.registry import Live, Plugin, Registry
from koordpolicy.engine.scheduler.cycle.loop import SchedulingLoop
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler
from koordpolicy.engine.source import PolicyError, Source
from koordpolicy.plugin import SKIP, SKIP_SHAPE, Changed, Nomination, OnlyNodes, Plan, Wait
from koordpolicy.testing import FakeClock

SECOND = 1_000_000_000


def node(name, **labels):
    return {
        "kind": "Node", "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}},
    }


def pod(name, priority=0, uid="", **spec):
    container = {"name": "main", "resources": {"requests": {"cpu": "1"}}}
    metadata = {"name": name, **({"uid": uid} if uid else {})}
    return {"kind": "Pod", "metadata": metadata, "spec": {"containers": [container], "priority": priority, **spec}}


def plugin(name, make, *points, **rest):
    return Plugin(
        name, Framework.SCHEDULER, points, lambda args, handle: make(handle) if isinstance(make, type) else make, name,
        name, **rest,
    )


def documents(text):
    return compile_documents(load([Source("policies.yaml", text)]))


def policy(name, spec):
    return (
        f"apiVersion: policy.koordinator.sh/v1alpha2\nkind: SchedulerPlugin\nmetadata: {{name: {name}}}\nspec:\n"
        f"{spec}\n"
    )


@pytest.fixture
def clock():
    return FakeClock(1000 * SECOND)


@pytest.fixture
def start(clock):
    def start(*plugins, objects=(), **rest):
        told = []
        loop = SchedulingLoop(
            Cluster(objects), Live(Registry.of(plugins, generation=1)), clock=clock, concluded=told.append, **rest,
        )
        loop.told = told
        return loop

    return start


class Says:
    """Answers what it is told at one point, and raises where that is an exception."""

    def __init__(self, method, answer):
        self._method, self._answer, self.calls = method, answer, 0

    def __getattr__(self, name):
        if name != self._method:
            raise AttributeError(name)

        def ask(*arguments):
            self.calls += 1
            if isinstance(self._answer, BaseException):
                raise self._answer
            return self._answer

        return ask


class Reserves:
    def __init__(self, answer):
        self.answer = answer

    def reserve(self, state, pod, snapshot, row):
        return self.answer

    def unreserve(self, state, pod, snapshot, row):
        return None


ODD = (True, 7, "text", object(), {"a": 1}, [None])
METHODS = {
    "pre_filter": Point.PRE_FILTER, "before_pre_filter": Point.PRE_FILTER, "after_pre_filter": Point.PRE_FILTER,
    "find_one_node": Point.PRE_FILTER, "prefer_nodes": Point.PRE_FILTER, "before_filter": Point.FILTER,
    "after_filter": Point.FILTER,
    "filter": Point.FILTER, "filter_node": Point.FILTER, "score": Point.SCORE, "score_node": Point.SCORE,
    "pre_score": Point.PRE_SCORE,
    "before_score": Point.SCORE, "nominate_reservation": Point.PERMIT, "permit": Point.PERMIT,
    "pre_bind": Point.PRE_BIND,
    "apply_patch": Point.PRE_BIND, "bind": Point.BIND, "post_filter": Point.POST_FILTER,
}
CARRIER = {
    Point.PRE_FILTER: "pre_filter", Point.FILTER: "filter_node", Point.SCORE: "score_node", Point.PERMIT: "permit",
    Point.PRE_BIND: "pre_bind",
}
"""The methods that a plugin needs to be active at a point, beside the one under test."""


class WithCarrier(Says):
    def __init__(self, method, answer, carrier):
        super().__init__(method, answer)
        if carrier != method:
            self.forget_nomination = lambda pod: None
            setattr(self, carrier, lambda *arguments: 0 if carrier == "score_node" else None)


class Ends(BaseException):
    """Derives from no `Exception`."""


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), Ends("over"), RecursionError("deep"), MemoryError()],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("method", METHODS)
def test_a_plugin_that_raises_what_ends_programs_has_failed_and_ends_nothing(start, method, error):
    point = METHODS[method]
    says = WithCarrier(method, error, CARRIER.get(point, method))
    others = (plugin("No", Says("filter_node", Refusal("", "no")), Point.FILTER),) if method == "post_filter" else ()
    loop = start(plugin("Odd", says, point), *others, objects=[node("a"), node("b"), pod("p")])
    verdict = loop.schedule_one()
    assert says.calls
    assert verdict.pod.name == "p"
    assert any(
        type(error).__name__ in failure.message for failure in verdict.errors()
    ) or "Odd" in verdict.summary() or verdict.node is None


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), Ends("over")], ids=lambda error: type(error).__name__,
)
def test_a_plugin_that_ends_programs_while_it_is_made_is_the_one_that_is_blamed(start, error):
    def make(args, handle):
        raise error

    broken = Plugin("Odd", Framework.SCHEDULER, (Point.FILTER,), make, "Odd", "Odd")
    with pytest.raises(PolicyError, match=f"the scheduler plugin `Odd` cannot be made: {type(error).__name__}"):
        start(broken, objects=[node("a"), pod("p")])


@pytest.mark.parametrize("method", METHODS)
def test_an_answer_of_an_odd_type_is_the_plugins_failure_and_the_pod_waits(start, method):
    point = METHODS[method]
    for odd in (
        *ODD, RuntimeError("broken"), OnlyNodes(None), OnlyNodes(frozenset((7,))), Wait(None), Plan(None),
        Changed(pod=7), Changed(snapshot=7), Nomination(7), Nomination("a", (7,)),
    ):
        says = WithCarrier(method, odd, CARRIER.get(point, method))
        others = (
            plugin("No", Says("filter_node", Refusal("", "no")), Point.FILTER),
        ) if method == "post_filter" else ()
        loop = start(plugin("Odd", says, point), *others, objects=[node("a"), node("b"), pod("p")])
        verdict = loop.schedule_one()
        assert says.calls
        assert verdict.pod.name == "p"
        assert isinstance(verdict.summary(), str)
        assert isinstance(verdict.to_json(), dict)
        if verdict.node is None:
            assert (
                len(loop.queue), loop.scheduler.cluster.snapshot(0).pod_count.tolist(),
            ) == (1, [0, 0]), (method, odd)
            assert method == "post_filter" or verdict.errors() or verdict.refusal is not None, (method, odd)
        else:
            assert (len(loop.queue), loop.scheduler.cluster.snapshot(0).pod_count.sum()) == (0, 1), (method, odd)


def test_an_odd_answer_of_reserve_gives_everything_back(start):
    for odd in ODD:
        loop = start(plugin("Odd", Reserves(odd), Point.RESERVE), objects=[node("a"), pod("p")])
        verdict = loop.schedule_one()
        assert (verdict.node, verdict.refusal[2].code, len(loop.queue)) == (None, Code.ERROR, 1)


def test_a_pre_enqueue_that_answers_oddly_or_raises_gates_the_pod(start):
    for odd in (*ODD, RuntimeError("broken")):
        loop = start(plugin("Odd", Says("pre_enqueue", odd), Point.PRE_ENQUEUE), objects=[node("a"), pod("p")])
        assert (loop.schedule_one(), loop.queue.counts()["gated"], len(loop.failures)) == (None, 1, 1)
        assert loop.gated_verdicts()[0].refusal[0] == "Odd"


def test_a_filter_that_cannot_say_why_it_refused_is_told_and_the_pod_waits(start):
    def broken(*arguments):
        raise RuntimeError("broken")

    answer = Answer(np.zeros(1, np.bool_), broken, reasons=broken, codes=broken, rules=broken, brief=broken)
    loop = start(
        plugin("F", Says("filter", answer), Point.FILTER), plugin("P", Says("post_filter", None), Point.POST_FILTER),
        objects=[node("a"), pod("p")],
    )
    verdict = loop.schedule_one()
    assert (verdict.reasons(), len(loop.queue)) == ({"why is not known: RuntimeError: broken": 1}, 1)


class Refuses:
    """Refuses all nodes; says what may help as it is told."""

    def __init__(self, **methods):
        for name, method in methods.items():
            setattr(self, name, method)

    def filter_node(self, state, pod, snapshot, row):
        return Refusal("", "no")


@pytest.mark.parametrize(("odd", "told"), [
    ("full", "the answer must be a refusal or None, not str"),
    (None, "the answer must be a refusal or None, not NoneType"),
    (Refusal(5, "full"), "the rule of a refusal must be a string, not int"),
    (Refusal("full", None), "the message of a refusal must be a string, not NoneType"),
    (Refusal("full", "full", "Error"), "the code of a refusal must be one of `Code`, not str"),
])
def test_what_is_no_refusal_is_told_and_can_be_read_whoever_gives_it(kit, odd, told):
    class AtOnce:
        def filter(self, state, pod, snapshot, rows):
            return Answer(np.zeros(len(rows), np.bool_), lambda row: odd)

    class ByNode:
        def filter_node(self, state, pod, snapshot, row):
            return odd

    class Before:
        def pre_filter(self, state, pod, snapshot):
            return odd

    for made, point in ((AtOnce(), Point.FILTER), (ByNode(), Point.FILTER), (Before(), Point.PRE_FILTER)):
        if odd is None and not isinstance(made, AtOnce):
            continue
        verdict = Scheduler(Cluster([node("a")]), kit.live(plugin("Odd", made, point))).decide(kit.pod())
        texts = [
            verdict.summary(), *(each.message for each in verdict.errors()),
            *(each.reason for each in verdict.refusals()),
        ]
        known = told if not isinstance(made, Before) or isinstance(
            odd, Refusal,
        ) else "the answer must be what the protocol of `preFilter` says, not 'full'"
        assert (verdict.node, any(known in text for text in texts)) == (None, True)


def test_a_plugin_that_fails_to_say_what_may_help_keeps_no_pod_from_being_tried_again(start, clock):
    def broken(*arguments):
        raise RuntimeError("broken")

    for methods in (
        {"may_help": broken}, {"depends_on": broken}, {"depends_on": lambda rules: 7},
        {"depends_on": lambda rules: {(7,)}},
    ):
        loop = start(plugin("F", Refuses(**methods), Point.FILTER), objects=[node("a"), pod("p")])
        assert [verdict.node for verdict in loop.schedule_all()] == [None]
        clock.advance(60)
        loop.scheduler.cluster.upsert(node("a", new="label"))
        assert [verdict.node for verdict in loop.schedule_all()] == [None], methods


def test_what_a_plugin_that_answers_by_node_says_of_events_is_heard(start, clock):
    loop = start(
        plugin("F", Refuses(may_help=lambda event, pod: event.kind == "Lease"), Point.FILTER),
        objects=[node("a"), pod("p")],
    )
    assert len(list(loop.schedule_all())) == 1
    clock.advance(60)
    loop.scheduler.cluster.upsert(node("a", new="label"))
    assert list(loop.schedule_all()) == []
    loop.scheduler.cluster.upsert({"kind": "Lease", "metadata": {"name": "a"}})
    assert len(list(loop.schedule_all())) == 1


def test_a_queue_sort_that_fails_or_cannot_be_compared_loses_no_pod(start):
    answers = iter([7, "text", None, object(), RuntimeError("broken"), (1, "a"), ("a", 1), (1, 2)])

    class Sorts:
        def queue_key(self, queued):
            answer = next(answers)
            if isinstance(answer, Exception):
                raise answer
            return answer

    loop = start(
        plugin("Sorts", Sorts(), Point.QUEUE_SORT), objects=[node("a"), *(pod(f"p{number}") for number in range(8))],
    )
    assert sorted(verdict.pod.name for verdict in loop.schedule_all()) == [f"p{number}" for number in range(8)]
    assert [failure.message for failure in loop.failures] == ["RuntimeError: broken"]


def test_a_victim_that_cannot_be_deleted_ends_the_attempt_and_no_node_is_nominated(start, clock):
    class Api:
        def preempt(self, pod, preemptor, node):
            raise OSError("500: etcd is gone")

        def bind(self, pod, node):
            return None

        def patch(self, original, modified):
            return None

    class Preempts:
        def post_filter(self, state, pod, snapshot, refused):
            return Nomination("a", snapshot.pods(0))

    running = pod("low", nodeName="a")
    plugins = [plugin("F", Refuses(), Point.FILTER), plugin("Preempts", Preempts(), Point.POST_FILTER)]
    loop = start(*plugins, objects=[node("a"), running, pod("high", 9)], client=Api())
    verdict = loop.schedule_one()
    assert (verdict.nomination, verdict.post_filter_refusals[0][1].message, len(loop.queue)) == (
        None, "OSError: 500: etcd is gone", 1,
    )
    assert loop.scheduler.nominations.nominated("a") == ()


# Pods that come and go


class Holds:
    """A permit that holds every pod, and remembers what it heard of it."""

    def __init__(self, handle):
        self.handle, self.log = handle, []

    def reserve(self, state, pod, snapshot, row):
        return None

    def unreserve(self, state, pod, snapshot, row):
        self.log.append(("unreserve", pod.name, row))

    def permit(self, state, pod, snapshot, row):
        return Wait(30 * SECOND)

    def forget_pod(self, pod):
        self.log.append(("forget", pod.name))

    def post_bind(self, state, pod, node):
        self.log.append(("bound", pod.name))

    def close(self):
        self.log.append("closed")


def holding(start, *objects, **rest):
    made = []

    def make(args, handle):
        made.append(Holds(handle))
        return made[-1]

    loop = start(
        Plugin("Holds", Framework.SCHEDULER, (Point.RESERVE, Point.PERMIT, Point.POST_BIND), make, "Holds", "Holds"),
        objects=objects, **rest,
    )
    return loop, made[0]


def test_a_pod_that_is_deleted_while_it_waits_gives_back_what_it_has_and_never_comes_again(start, clock):
    loop, holds = holding(start, node("a"), pod("p"))
    assert loop.schedule_one().waiting
    loop.scheduler.cluster.delete("Pod", "default/p")
    assert list(loop.schedule_all()) == []
    assert (holds.log, loop.told[0].node, len(loop.queue), loop.scheduler.waiting.keys()) == (
        [("unreserve", "p", 0), ("forget", "p")], None, 0, (),
    )
    clock.advance(3600)
    assert (list(loop.schedule_all()), loop.next_time()) == ([], None)


def test_a_pod_that_is_made_anew_while_it_waits_is_another_one(start, clock):
    loop, holds = holding(start, node("a"), pod("p", uid="1"))
    assert loop.schedule_one().waiting
    loop.scheduler.cluster.upsert(pod("p", uid="2"))
    assert len(loop.queue) == 1
    verdict = loop.schedule_one()
    assert (verdict.pod.uid, verdict.waiting, holds.log) == ("2", True, [("unreserve", "p", 0), ("forget", "p")])
    assert (len(loop.queue), loop.scheduler.cluster.snapshot(0).pod_count.tolist()) == (0, [1])


def test_a_pod_that_somebody_else_bound_while_it_waits_stays_where_it_is(start, clock):
    loop, holds = holding(start, node("a"), node("b"), pod("p", uid="1"))
    assert loop.schedule_one().node == "a"
    loop.scheduler.cluster.upsert(pod("p", uid="1", nodeName="b"))
    assert list(loop.schedule_all()) == []
    assert (holds.log, len(loop.queue)) == ([("unreserve", "p", 0), ("forget", "p")], 0)
    assert loop.scheduler.cluster.snapshot(0).pod_count.tolist() == [0, 1]


def test_a_pod_whose_node_vanishes_while_it_waits_tries_again(start, clock):
    loop, holds = holding(start, node("a"), node("b"), pod("p"))
    assert loop.schedule_one().node == "a"
    loop.scheduler.cluster.delete("Node", "a")
    loop.scheduler.process_bindings()
    clock.advance(1)
    verdict = loop.schedule_one()
    assert (holds.log[:2], loop.told[0].node, verdict.node) == ([("unreserve", "p", -1), ("forget", "p")], None, "b")


def test_what_happens_while_a_pod_waits_counts_when_it_loses_its_node(start, clock):
    class Hints(Holds):
        def may_help(self, event, pod):
            return event.kind == "Node"

    made = []

    def make(args, handle):
        made.append(Hints(handle))
        return made[-1]

    loop = start(
        Plugin("Holds", Framework.SCHEDULER, (Point.RESERVE, Point.PERMIT), make, "Holds", "Holds"),
        objects=[node("a"), pod("p")],
    )
    assert loop.schedule_one().waiting
    loop.scheduler.cluster.upsert(node("b"))
    clock.advance(30)
    loop.scheduler.process_bindings()
    assert loop.queue.counts()["backoff"] + loop.queue.counts()["active"] == 1


def test_the_nomination_of_a_pod_that_is_deleted_ends_and_others_try_again(start, clock):
    class Fits:
        def filter(self, state, pod, snapshot, rows):
            free = snapshot.allocatable("cpu") - snapshot.requested("cpu")
            return Answer(free >= pod.requests["cpu"], lambda row: Refusal("", "Insufficient cpu"))

        def may_help(self, event, pod):
            return event.old_pod is not None and event.old_pod.node_name == "a" and event.new_pod is None

    big = pod("big", 9)
    big["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "4"
    loop = start(
        plugin("Fits", Fits(), Point.FILTER), objects=[node("a"), {**big, "status": {"nominatedNodeName": "a"}}],
    )
    loop.queue.pop()
    loop.scheduler.cluster.upsert(pod("small"))
    # the pod was nominated before this scheduler began
    assert [verdict.node for verdict in loop.schedule_all()] == [None]
    loop.scheduler.cluster.delete("Pod", "default/big")
    assert loop.scheduler.nominations.nominated("a") == ()
    clock.advance(60)
    assert [verdict.node for verdict in loop.schedule_all()] == ["a"]


def test_a_pod_that_is_being_deleted_is_not_tried(start):
    loop = start(objects=[node("a"), pod("p"), pod("q")])
    leaving = pod("p")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    loop.scheduler.cluster.upsert(leaving)
    assert [verdict.pod.name for verdict in loop.schedule_all()] == ["q"]


class Gate:
    """Keeps pods out until it is told otherwise."""

    def __init__(self):
        self.closed, self.asked = True, 0

    def pre_enqueue(self, pod, snapshot):
        self.asked += 1
        return Refusal("", "not yet") if self.closed else None

    def may_help(self, event, pod):
        return False


def test_neither_activating_nor_other_policies_let_a_gated_pod_in_that_its_plugin_keeps_out(start):
    gate = Gate()
    live = Live(Registry.of([plugin("Gate", gate, Point.PRE_ENQUEUE)], generation=1))
    loop = SchedulingLoop(Cluster([node("a"), pod("p")]), live, clock=FakeClock(1000 * SECOND))
    loop.queue.activate(["default/p"])
    assert (list(loop.schedule_all()), loop.queue.counts()["gated"], gate.asked) == ([], 1, 2)
    live.replace(
        lambda: [plugin("Gate", gate, Point.PRE_ENQUEUE), plugin("F", Says("filter_node", None), Point.FILTER)],
    )
    assert (list(loop.schedule_all()), loop.queue.counts()["gated"], gate.asked) == ([], 1, 3)
    gate.closed = False
    loop.queue.activate(["default/p"])
    assert [verdict.node for verdict in loop.schedule_all()] == ["a"]


def test_the_plugin_that_says_which_pod_is_next_does_not_open_its_gate(start):
    loop = start(
        plugin("Gate", Gate(), Point.PRE_ENQUEUE),
        plugin("Next", WithCarrier("next_pod", "default/p", "pre_filter"), Point.PRE_FILTER),
        objects=[node("a"), pod("p")],
    )
    assert (loop.schedule_one(), loop.queue.counts()["gated"]) == (None, 1)


def test_a_pod_that_is_activated_by_whoever_is_asked_for_the_next_one_is_tried_at_once(start):
    gate = Gate()

    class Next:
        def __init__(self, handle):
            self.handle = handle

        def pre_filter(self, state, pod, snapshot):
            return None

        def next_pod(self):
            if gate.closed:
                gate.closed = False
                self.handle.queue.activate(["default/p"])

    loop = start(
        plugin("Gate", gate, Point.PRE_ENQUEUE), plugin("Next", Next, Point.PRE_FILTER), objects=[node("a"), pod("p")],
    )
    assert [verdict.node for verdict in loop.schedule_all()] == ["a"]


def test_whoever_is_told_after_a_failure_is_told_though_somebody_handled_it(start):
    after = WithCarrier("after_error", False, "pre_filter")
    before = WithCarrier("before_error", True, "pre_filter")
    loop = start(
        plugin("Before", before, Point.PRE_FILTER), plugin("After", after, Point.PRE_FILTER),
        plugin("F", Refuses(), Point.FILTER), objects=[node("a"), pod("p")],
    )
    loop.schedule_one()
    assert (before.calls, after.calls, len(loop.queue)) == (1, 1, 0)


# Reloads


def test_a_reload_in_the_middle_of_a_decision_is_seen_by_the_next_one_only(clock):
    log = []

    class Watches(Holds):
        def reserve(self, state, pod, snapshot, row):
            live.replace(lambda: [gate])  # what another thread may do at any moment

        def permit(self, state, pod, snapshot, row):
            log.append(("permit", "closed" in self.log))
            return Wait(30 * SECOND)

        def unreserve(self, state, pod, snapshot, row):
            log.append(("unreserve", "closed" in self.log))

    class Opens(Gate):
        def may_help(self, event, pod):
            return True

    gate = plugin("Gate", Opens(), Point.PRE_ENQUEUE)
    watches = Plugin(
        "W", Framework.SCHEDULER, (Point.RESERVE, Point.PERMIT), lambda args, handle: Watches(handle), "W", "W",
    )
    live = Live(Registry.of([watches, gate], generation=1))
    loop = SchedulingLoop(Cluster([node("a"), pod("gated")]), live, clock=clock)
    scheduler = loop.scheduler
    # The gated pod is looked at whenever something changes, that is, in the middle of this decision.
    waiting = scheduler.schedule(loop.queue.pods()[0].__class__.of(pod("p")))
    assert (waiting.waiting, log) == (True, [("permit", False)])
    scheduler.process_bindings()
    clock.advance(30)
    assert scheduler.profile_of(waiting.pod).generation == 2
    scheduler.process_bindings()
    assert log == [("permit", False), ("unreserve", False)]


def test_a_plugin_hears_of_nothing_before_it_is_made_and_started(kit):
    heard, early = [], []

    class Listens:
        def __init__(self, args, handle):
            handle.events.on(["Node"], lambda event: heard.append(event.key))
            if scheduler:
                scheduler[0].process_bindings()  # the thread that decides does not wait for plugins to be made
                early.extend(heard)

        def start(self):
            if scheduler:
                scheduler[0].process_bindings()
                early.extend(heard)

        def pre_filter(self, state, pod, snapshot):
            return None

    scheduler = []
    live = Live(Registry.of([], generation=1))
    scheduler.append(Scheduler(kit.cluster("a"), live))
    live.replace(lambda: [Plugin("L", Framework.SCHEDULER, (Point.PRE_FILTER,), Listens, "L", "L")])
    scheduler[0].schedule(kit.pod())
    assert (heard, early) == (["a"], [])


def test_a_plugin_that_is_closed_while_it_is_told_what_there_is_hears_no_more(kit):
    heard, handles = [], []

    class Listens:
        def __init__(self, args, handle):
            handles.append(handle)

            def note(event):
                heard.append(event.key)
                handle.events.close()  # what the thread that reloads may do at any moment

            handle.events.on(["Node"], note)

        def pre_filter(self, state, pod, snapshot):
            return None

    cluster = kit.cluster("a", "b")
    scheduler = Scheduler(cluster, kit.live(Plugin("L", Framework.SCHEDULER, (Point.PRE_FILTER,), Listens, "L", "L")))
    scheduler.schedule(kit.pod())
    cluster.upsert(kit.node("c"))
    scheduler.process_bindings()
    assert heard == ["a"]


# Views of the cluster


def test_a_document_is_asked_about_the_view_that_it_is_shown(start, clock):
    [room] = documents(
        policy(
            "room",
            "  preFilter: [{name: known, expression: 'true'}]\n"
            "  filter: [{name: room, expression: 'requested.cpu + requests.cpu <= 4000'}]",
        ),
    )

    class Preempts:
        def post_filter(self, state, pod, snapshot, refused):
            rows = refused.passes(snapshot.overlay({"a": NodeChange(remove=["default/low"])}), np.array([0], np.intp))
            return Nomination("a", snapshot.pods(0)) if len(rows) else Refusal("", "nothing helps")

    low = pod("low", nodeName="a")
    low["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "4"
    loop = start(room, plugin("Preempts", Preempts(), Point.POST_FILTER), objects=[node("a"), low, pod("high", 9)])
    assert loop.schedule_one().nomination.node == "a"


def test_a_document_sees_the_pod_that_a_transformer_made(kit):
    other = kit.pod("p", cpu="4")

    class Before:
        def filter_node(self, state, pod, snapshot, row):
            return None

        def before_filter(self, state, pod, snapshot, rows):
            return Changed(pod=other)

    [room] = documents(
        policy(
            "room",
            "  preFilter: [{name: known, expression: 'true'}]\n"
            "  filter: [{name: room, expression: 'requests.cpu < 4000'}]",
        ),
    )
    scheduler = Scheduler(kit.cluster("a"), kit.live(plugin("Before", Before(), Point.FILTER), room))
    assert scheduler.decide(kit.pod("p", cpu="1")).node is None


NODES = 70


class Keeps:
    """Refuses the nodes of one number; all its questions have the same key."""

    def __init__(self, number, kept=True, skips=""):
        self.number, self.kept, self.skips = number, kept, skips

    def cache_key(self, point, pod, snapshot):
        return CacheKey("same", frozenset({("requested", "cpu")})) if self.kept else None

    def pre_filter(self, state, pod, snapshot):

        return SKIP if pod.name == self.skips else None

    def filter(self, state, pod, snapshot, rows):
        passed = np.ones(snapshot.size, np.bool_)
        passed[self.number] = False
        return Answer(passed, lambda row: Refusal("", f"no {self.number}"))


def test_kept_answers_of_other_plugins_are_kept_apart(kit):
    points = (Point.PRE_FILTER, Point.FILTER)
    plugins = [
        plugin("A", Keeps(0, skips="q"), *points), plugin("B", Keeps(1, skips="p"), *points),
        plugin("C", Keeps(2, kept=False), Point.FILTER),
    ]
    cluster = Cluster((node(f"n{number:02}") for number in range(NODES)), cache_results_from=0)
    scheduler = Scheduler(cluster, kit.live(*plugins))
    assert set(scheduler.decide(kit.pod("p")).passed.tolist()) == set(range(NODES)) - {0, 2}
    assert set(scheduler.decide(kit.pod("q")).passed.tolist()) == set(range(NODES)) - {1, 2}


def test_kept_scores_are_about_the_pod_that_a_transformer_made(kit):
    class Scores100:
        def cache_key(self, point, pod, snapshot):
            return CacheKey(pod.requests["cpu"], frozenset())

        def filter(self, state, pod, snapshot, rows):
            return Answer(np.ones(snapshot.size, np.bool_))

        def before_score(self, state, pod, snapshot, rows):
            return Changed(pod=kit.pod("p", cpu="4"))

        def score(self, state, pod, snapshot, rows):
            return Scores(np.full(snapshot.size, pod.requests["cpu"] // 1000, np.int64))

    cluster = Cluster((node(f"n{number:02}") for number in range(NODES)), cache_results_from=0)
    scheduler = Scheduler(cluster, kit.live(plugin("S", Scores100(), Point.FILTER, Point.SCORE)))
    assert scheduler.decide(kit.pod("p", cpu="1")).totals.tolist() == [4] * NODES


def test_totals_of_large_weights_are_exact(kit):
    class Full:
        def cache_key(self, point, pod, snapshot):
            return CacheKey(None, frozenset())

        def score(self, state, pod, snapshot, rows):
            return Scores(np.full(snapshot.size, 100, np.int64))

    cluster = Cluster((node(f"n{number:02}") for number in range(NODES)), cache_results_from=0)
    scheduler = Scheduler(cluster, kit.live(plugin("S", Full(), Point.SCORE, weight=30_000_000)))
    assert scheduler.decide(kit.pod()).totals.max() == 3_000_000_000


class SkipsShapes:
    """Skips pods without a priority at a point, by their shape; records its calls."""

    def __init__(self):
        self.asked = []

    def _skip(self, pod):
        self.asked.append(pod.name)
        return None if pod.priority else SKIP_SHAPE

    def pre_filter(self, state, pod, snapshot):
        return self._skip(pod)

    def filter(self, state, pod, snapshot, rows):
        return Answer(rows != 0)

    def pre_score(self, state, pod, snapshot, rows):
        return self._skip(pod)

    def score(self, state, pod, snapshot, rows):
        return Scores(100 - rows)


@pytest.mark.parametrize(("points", "nodes"), [
    ((Point.PRE_FILTER, Point.FILTER), ["a", "a", "b", "b"]), ((Point.PRE_SCORE, Point.SCORE), ["a"] * 4),
])
def test_a_plugin_that_skips_a_shape_is_not_called_for_its_pods_again(kit, points, nodes):
    it = SkipsShapes()
    scheduler = Scheduler(kit.cluster("a", "b", "c"), kit.live(plugin("Skips", it, *points)))
    pods = [kit.pod("p"), kit.pod("q"), *(kit.pod(name, priority=1) for name in "rs")]
    verdicts = [scheduler.decide(each) for each in pods]
    assert ([each.node for each in verdicts], it.asked) == (nodes, ["p", "r", "s"])
    assert [bool(each.scores) for each in verdicts] == [points[1] is Point.SCORE and number > 1 for number in range(4)]
