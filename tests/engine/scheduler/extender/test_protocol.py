from __future__ import annotations

import json

import numpy as np
import pytest

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.points import Answer, Code, Enforcement, Point, Refusal
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler
from koordpolicy.engine.scheduler.extender.bodies import MalformedBody
from koordpolicy.engine.scheduler.extender.decision_record import Verb
from koordpolicy.engine.scheduler.extender.protocol import Extender, Priorities, read_request, rescale
from koordpolicy.engine.source import Source


class Timer:
    """Seconds that pass when somebody says so."""

    now = 0.0

    def __call__(self):
        return self.now


def body(names=None, nodes=None, uid="u1", pod=None, **rest):
    pod = pod or {
        "metadata": {"name": "p", "namespace": "shop", "uid": uid}, "spec": {"containers": [{"name": "main"}]},
    }
    return json.dumps({"Pod": pod, "Nodes": nodes, "NodeNames": names, **rest}).encode()


def asking(kit, *plugins, cluster=None, live=None, timer=None, **options):
    live = live or kit.live(*plugins)
    cluster = kit.cluster(*"abc") if cluster is None else cluster
    return Extender(Scheduler(cluster, live), clock=lambda: 7_000_000_000, timer=timer or Timer(), **options)


def ask(extender, verb, *args, **options):
    return json.loads(extender.answer(verb, body(*args, **options)).body)


def result(names=None, nodes=None, failed=None, unresolvable=None, error=""):
    return {
        "Nodes": nodes, "NodeNames": names, "FailedNodes": failed or {},
        "FailedAndUnresolvableNodes": unresolvable or {}, "Error": error,
    }


def documents(*texts):
    return compile_documents(load(Source(f"{number}.yaml", text) for number, text in enumerate(texts)))


class Codes:
    """Refuses each node with the code in its name."""

    def filter(self, state, pod, snapshot, rows):
        codes = {"a": Code.UNSCHEDULABLE, "b": Code.UNRESOLVABLE, "c": Code.ERROR}
        passed = np.array([name not in codes for name in snapshot.names], np.bool_)
        return Answer(passed, lambda row: Refusal("rule", f"no {snapshot.names[row]}", codes[snapshot.names[row]]))


def test_nodes_that_pass_come_back_in_the_order_they_were_asked_in(kit):
    extender = asking(kit, kit.plugin("F", kit.refuses("b")))
    assert ask(extender, Verb.FILTER, ["c", "b", "a"]) == result(["c", "a"], failed={"b": "F: no b"})


def test_codes_decide_where_a_refusal_goes(kit):
    extender = asking(kit, kit.plugin("F", Codes()), cluster=kit.cluster(*"abcd"))
    assert ask(extender, Verb.FILTER, list("abcd")) == result(
        ["d"], failed={"a": "F: no a", "c": "F: PolicyError: no c"}, unresolvable={"b": "F: no b"},
    )


def test_a_pod_that_is_refused_as_a_whole_is_refused_on_every_node(kit):
    class Never:
        code = Code.UNRESOLVABLE

        def pre_filter(self, state, pod, snapshot):
            return Refusal("rule", "never", self.code)

    extender = asking(kit, kit.plugin("F", Never()))
    assert ask(extender, Verb.FILTER, ["a", "b"]) == result([], unresolvable={"a": "F: never", "b": "F: never"})
    assert extender.recent[-1].result == "refused"
    assert extender.pins == 0


def test_only_the_nodes_of_the_request_are_asked_about(kit):
    refuses = kit.refuses("b")
    extender = asking(kit, kit.plugin("F", refuses))
    assert ask(extender, Verb.FILTER, ["c", "a"]) == result(["c", "a"])
    assert refuses.asked == [[0, 2]]


def test_unknown_nodes_fail_with_a_reason_and_the_others_are_answered(kit):
    extender = asking(kit, kit.plugin("S", kit.gives(a=1, b=2)))
    why = {'x"y': 'koord-policy: node `x"y` is not among the nodes that are known'}
    assert ask(extender, Verb.FILTER, ["b", 'x"y', "a"]) == result(["b", "a"], failed=why)
    priorities = ask(extender, Verb.PRIORITIZE, ["b", 'x"y', "a"])
    assert sorted(priorities, key=lambda each: each["Host"]) == [
        {"Host": "a", "Score": 0}, {"Host": "b", "Score": 10}, {"Host": 'x"y', "Score": 0}]
    assert extender.recent[-1].unknown == 1


def test_without_any_state_every_name_is_unknown(kit):
    extender = asking(kit, cluster=Cluster())
    assert ask(extender, Verb.FILTER, ["a"]) == result(
        [],
        failed={
            "a": "koord-policy: node `a` is not known, as no node is: it needs `--cluster`, or `nodeCacheCapable: "
                 "false` in kube-scheduler",
        },
    )


def test_a_name_that_is_asked_twice_is_answered_twice(kit):
    assert ask(asking(kit), Verb.FILTER, ["a", "a"]) == result(["a", "a"])


def test_no_nodes_are_no_nodes(kit):
    extender = asking(kit, kit.plugin("S", kit.gives(a=1)))
    assert ask(extender, Verb.FILTER, []) == result([])
    assert ask(extender, Verb.PRIORITIZE, []) == []
    assert [record.result for record in extender.recent] == ["ok", "ok"]


def test_priorities_use_the_whole_range_over_the_nodes_of_the_request(kit):
    extender = asking(kit, kit.plugin("S", kit.gives(a=40, b=45, c=50, d=100)), cluster=kit.cluster(*"abcd"))
    assert ask(extender, Verb.PRIORITIZE, ["c", "a", "b"]) == [
        {"Host": "c", "Score": 10}, {"Host": "a", "Score": 0}, {"Host": "b", "Score": 5}]


def test_exact_totals_are_kept_for_status(kit):
    plugins = kit.plugin("S", kit.gives(a=40, b=45, c=50)), kit.plugin("T", kit.gives(b=10), weight=2)
    extender = asking(kit, *plugins)
    ask(extender, Verb.FILTER, ["a", "b", "c"])
    ask(extender, Verb.PRIORITIZE, ["a", "b"])
    common = {"pod": "shop/p", "uid": "u1", "result": "ok", "at": 7.0, "generation": 1, "profile": "default-scheduler",
              "unknownNodes": 0, "errors": []}
    assert [record.to_json(every=True) for record in extender.recent] == [
        common | {"verb": "filter", "pinned": False, "nodes": 3, "passed": 3, "refusals": []},
        common | {"verb": "prioritize", "pinned": True, "nodes": 2, "best": [
            {"node": "b", "total": 65, "priority": 10, "plugins": {"S": 45, "T": 10}},
            {"node": "a", "total": 40, "priority": 0, "plugins": {"S": 40, "T": 0}},
        ], "totals": {"a": 40, "b": 65}},
    ]


@pytest.mark.parametrize(("totals", "how", "want"), [
    ([50, 75, 100], Priorities.MIN_MAX, [0, 5, 10]),
    ([50, 75, 100], Priorities.MAX, [5, 7, 10]),
    ([99, 100, 0], Priorities.MIN_MAX, [9, 10, 0]),
    ([7, 7], Priorities.MIN_MAX, [0, 0]),
    ([7, 7], Priorities.MAX, [10, 10]),
    ([0, 0], Priorities.MAX, [0, 0]),
    ([], Priorities.MIN_MAX, []),
])
def test_the_formulas_of_priorities(totals, how, want):
    assert rescale(np.array(totals, np.int64), how).tolist() == want


def test_many_refused_nodes_keep_computed_words_for_the_first_and_fixed_ones_for_the_rest(kit):
    plugins = documents("""\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: small}
spec:
  filter:
  - {name: big, expression: allocatable.cpu > 9000, messageExpression: "'only ' + node.metadata.name"}
  - {name: zoned, expression: "node.metadata.labels['zone'] == 'a'"}
""")
    names = [f"n{number:03}" for number in range(150)]
    cluster = Cluster([kit.node(name) for name in names] + [kit.node("z", cpu="16")])
    got = ask(asking(kit, *plugins, cluster=cluster), Verb.FILTER, [*names, "z"])
    assert got["NodeNames"] == []
    assert got["FailedNodes"].pop("z").startswith("small: PolicyError: ")
    assert got["FailedNodes"] == {
        name: f"small: only {name}" if number < 100 else "small: `allocatable.cpu > 9000` is false"
        for number, name in enumerate(names)}


def test_audited_refusals_are_reported_and_do_not_count(kit):
    extender = asking(kit, kit.plugin("F", kit.refuses("a", "b"), enforcement=Enforcement.AUDIT))
    assert ask(extender, Verb.FILTER, ["a", "c"]) == result(["a", "c"])
    record = extender.recent[-1]
    assert (record.refused_by, record.unenforced) == ({}, (("F", Enforcement.AUDIT, 1),))
    assert [(told.plugin, told.reason, told.enforcement) for told in record.refusals] == [
        ("F", "no a", Enforcement.AUDIT),
    ]


# The generation of a pod's two calls


def test_a_pod_meets_one_generation_in_both_calls_whatever_is_reloaded_between_them(kit):
    live = kit.live(kit.plugin("S", kit.gives(a=1, b=0), digest="1"))
    extender = asking(kit, live=live)
    ask(extender, Verb.FILTER, ["a", "b"], uid="before")
    live.replace(lambda: [kit.plugin("S", kit.gives(a=0, b=1), digest="2")])
    ask(extender, Verb.FILTER, ["a", "b"], uid="after")
    old, new = [{"Host": "a", "Score": 10}, {"Host": "b", "Score": 0}], [
        {"Host": "a", "Score": 0}, {"Host": "b", "Score": 10},
    ]
    assert ask(extender, Verb.PRIORITIZE, ["a", "b"], uid="after") == new
    assert ask(extender, Verb.PRIORITIZE, ["a", "b"], uid="before") == old
    assert ask(extender, Verb.PRIORITIZE, ["a", "b"], uid="before") == new
    assert [(each.generation, each.pinned) for each in extender.recent] == [
        (1, False), (2, False), (2, True), (1, True), (2, False),
    ]


class Closing:
    def __init__(self):
        self.closed = 0

    def filter(self, state, pod, snapshot, rows):
        return Answer(np.ones(snapshot.size, np.bool_))

    def close(self):
        self.closed += 1


def pinned_instance(kit, **options):
    """Return an extender in which one pod holds an instance that the active generation has no more."""
    instance = Closing()
    live = kit.live(kit.plugin("F", instance))
    extender = asking(kit, live=live, **options)
    ask(extender, Verb.FILTER, ["a"], uid="held")
    live.replace(list)
    return extender, instance


def test_an_instance_ends_with_the_second_call_of_the_last_pod_that_holds_it(kit):
    extender, instance = pinned_instance(kit)
    ask(extender, Verb.FILTER, ["a"], uid="other")
    assert (instance.closed, extender.pins) == (0, 2)
    ask(extender, Verb.PRIORITIZE, ["a"], uid="held")
    assert (instance.closed, extender.pins) == (1, 1)


def test_a_pod_that_is_filtered_again_holds_the_new_generation_only(kit):
    extender, instance = pinned_instance(kit)
    ask(extender, Verb.FILTER, ["a"], uid="held")
    assert (instance.closed, extender.pins) == (1, 1)


def test_the_oldest_pod_lets_go_when_too_many_hold_a_generation(kit):
    extender, instance = pinned_instance(kit, most_pins=2)
    ask(extender, Verb.FILTER, ["a"], uid="second")
    assert instance.closed == 0
    ask(extender, Verb.FILTER, ["a"], uid="third")
    assert (instance.closed, extender.pins) == (1, 2)


def test_a_pod_that_is_not_asked_about_again_lets_go_after_a_while(kit):
    timer = Timer()
    extender, instance = pinned_instance(kit, timer=timer, pin_seconds=60)
    timer.now = 59
    ask(extender, Verb.FILTER, ["a"], uid="other")
    assert instance.closed == 0
    timer.now = 60
    ask(extender, Verb.FILTER, ["a"], uid="other")
    assert (instance.closed, extender.pins) == (1, 1)


def test_a_pod_without_a_node_holds_nothing(kit):
    extender = asking(kit, kit.plugin("F", kit.refuses("a")))
    ask(extender, Verb.FILTER, ["a"])
    assert extender.pins == 0


def test_a_pod_without_uid_is_known_by_its_name(kit):
    extender = asking(kit)
    ask(extender, Verb.FILTER, ["a"], uid="")
    ask(extender, Verb.PRIORITIZE, ["a"], uid="")
    assert (extender.recent[-1].pinned, extender.pins) == (True, 0)


def test_closing_lets_all_pods_go(kit):
    extender, instance = pinned_instance(kit)
    ask(extender, Verb.FILTER, ["a"], uid="other")
    extender.close()
    assert (instance.closed, extender.pins) == (1, 0)


# Whole nodes in the request (nodeCacheCapable: false)


def sent(kit, name, version="1", **rest):
    node = kit.node(name, **rest)
    node.pop("kind")
    node["metadata"] |= {"uid": f"uid-{name}", "resourceVersion": version}
    return node


SMALL = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: big-enough}
spec:
  filter:
  - name: cpu
    expression: allocatable.cpu - requested.cpu >= 4000
    messageExpression: string(allocatable.cpu - requested.cpu) + 'm'
"""


def test_whole_nodes_are_taken_in_and_come_back_whole(kit):
    extender = asking(kit, *documents(SMALL), cluster=Cluster())
    big, small = sent(kit, "big", cpu="8"), sent(kit, "small", cpu="2")
    got = ask(extender, Verb.FILTER, nodes={"metadata": {}, "items": [small, big]})
    assert got == result(None, {"metadata": {}, "items": [big]}, failed={"small": "big-enough: 2000m"})
    assert ask(extender, Verb.PRIORITIZE, nodes={"Items": [big]}) == [{"Host": "big", "Score": 0}]


def test_a_node_is_decoded_again_only_when_its_content_is_another(kit):
    extender = asking(kit, *documents(SMALL), cluster=Cluster())

    def filtered(*nodes):
        got = ask(extender, Verb.FILTER, nodes={"items": list(nodes)})
        return [node["metadata"]["name"] for node in got["Nodes"]["items"]], extender.cluster.object("Node", "a")

    passed, first = filtered(sent(kit, "a"), sent(kit, "b"))
    assert passed == ["a", "b"]
    assert filtered(sent(kit, "a"))[1] is first
    passed, second = filtered(sent(kit, "a", "2", cpu="1"))
    assert (passed, second is first) == ([], False)
    # A version is only a claim.
    passed, third = filtered(sent(kit, "a", "2", cpu="8"))
    assert (passed, third is second) == (["a"], False)


def test_pods_that_are_known_count_on_nodes_that_are_sent(kit):
    cluster = Cluster([kit.node("a"), dict(kit.pod("there", cpu="3", nodeName="a").object)])
    extender = asking(kit, *documents(SMALL), cluster=cluster)
    got = ask(extender, Verb.FILTER, nodes={"items": [sent(kit, "a", cpu="6"), sent(kit, "b", cpu="6")]})
    assert got["FailedNodes"] == {"a": "big-enough: 3000m"}


def test_a_malformed_node_fails_alone_each_time_it_is_sent(kit):
    extender = asking(kit, *documents(SMALL), cluster=Cluster())
    bad, worse, good = sent(kit, "bad", cpu="12Zi"), sent(kit, "worse"), sent(kit, "good")
    del worse["status"]["allocatable"]
    for _ in range(2):
        got = ask(extender, Verb.FILTER, nodes={"items": [bad, worse, good]})
        assert [node["metadata"]["name"] for node in got["Nodes"]["items"]] == ["good"]
        assert sorted(got["FailedNodes"]) == ["bad", "worse"]
        assert "koord-policy: Node `bad`: `status.allocatable.cpu`: " in got["FailedNodes"]["bad"]
        assert got["FailedNodes"]["worse"] == "koord-policy: Node `worse`: `status.allocatable` is missing"
    # What is known of an older version is not an answer about this one.
    assert ask(extender, Verb.FILTER, nodes={"items": [sent(kit, "good", "2", cpu="x")]})["Nodes"]["items"] == []
    assert ask(extender, Verb.FILTER, nodes={"items": [sent(kit, "good", "3")]})["FailedNodes"] == {}


def test_nodes_that_are_sent_no_more_are_forgotten_after_a_while(kit):
    timer = Timer()
    extender = asking(kit, cluster=Cluster(), timer=timer, node_seconds=100)
    ask(extender, Verb.FILTER, nodes={"items": [sent(kit, "a"), sent(kit, "b")]})
    timer.now = 60
    ask(extender, Verb.FILTER, nodes={"items": [sent(kit, "a")]})
    timer.now = 120
    ask(extender, Verb.FILTER, nodes={"items": [sent(kit, "c")]})
    assert extender.cluster.names == ["a", "c"]


# Bodies


def test_keys_of_the_envelope_count_in_any_case(kit):
    pod = json.loads(body())["Pod"]
    question = read_request(json.dumps({"pod": pod, "nodenames": ["a"], "nodes": None}).encode())
    assert (question.pod.key, question.names, question.nodes) == ("shop/p", ["a"], None)
    assert (question.pod.object["kind"], question.pod.object["apiVersion"]) == ("Pod", "v1")


def test_an_empty_list_of_go_is_no_nodes():
    assert read_request(body(nodes={"metadata": {}, "items": None})).nodes == []


POD = '{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c"}]}}'


@pytest.mark.parametrize(("text", "reason"), [
    (b"", "the body is not JSON: Expecting value at line 1, column 1"),
    (b"{", "the body is not JSON: Expecting property name enclosed in double quotes at line 1, column 2"),
    (b'{"Pod":1} x', "the body is not JSON: Extra data at line 1, column 11"),
    (b"\xff\xfe", "the body is not UTF-8 at byte 0"),
    (b"[]", "the body must be an object with `Pod` and `Nodes` or `NodeNames`, not a list"),
    (b"null", "the body must be an object with `Pod` and `Nodes` or `NodeNames`, not null"),
    (b'{"Pod":NaN}', "the body is not JSON: `NaN` is not a number"),
    (b'{"Pod":-Infinity}', "the body is not JSON: `-Infinity` is not a number"),
    (b'{"Pod":1e999}', "the body holds the number `1e999`, which is out of range"),
    (b"[" * 40_000, "the body is nested too deeply"),
    (b'{"a":' * 100_000, "the body is nested too deeply"),
    (b"{}", "`Pod` is missing"),
    (b'{"Pod":[]}', "`Pod` must be an object, not a list"),
    (b'{"Pod":{}}', "`Pod`: `metadata` is missing"),
    (
        b'{"Pod":{"metadata":{"name":"p"},"spec":{}}}',
        "`Pod`: `spec.containers` is missing or empty: a pod has at least one container",
    ),
    (f'{{"Pod":{POD}}}'.encode(), "`Nodes` and `NodeNames` are both missing: there is nothing to choose from"),
    (
        f'{{"Pod":{POD},"NodeNames":[],"Nodes":{{}}}}'.encode(),
        "both `Nodes` and `NodeNames` are given: kube-scheduler sends one of them",
    ),
    (f'{{"Pod":{POD},"NodeNames":"a"}}'.encode(), "`NodeNames` must be a list of strings, not a string"),
    (f'{{"Pod":{POD},"NodeNames":["a",1]}}'.encode(), "`NodeNames[1]` must be a string, not a number"),
    (f'{{"Pod":{POD},"Nodes":[]}}'.encode(), "`Nodes` must be a list of nodes, not a list"),
    (f'{{"Pod":{POD},"Nodes":{{"items":{{}}}}}}'.encode(), "`Nodes.items` must be a list, not an object"),
    (f'{{"Pod":{POD},"Nodes":{{"items":[1]}}}}'.encode(), "`Nodes.items[0]` must be an object, not a number"),
    (
        f'{{"Pod":{POD},"Nodes":{{"items":[{{"metadata":{{}}}}]}}}}'.encode(),
        "`Nodes.items[0].metadata.name` is missing",
    ),
    (
        f'{{"Pod":{POD.replace("c", "d" * 300, 0)},"NodeNames":[]}}'.replace(
            '"name":"p"', f'"name":"p","uid":"{"u" * 257}"',
        ).encode(),
        "`Pod`: its name or `metadata.uid` is longer than 256 characters",
    ),
])
def test_a_malformed_body_is_refused_with_a_reason(text, reason):
    with pytest.raises(MalformedBody) as caught:
        read_request(text)
    assert str(caught.value) == reason


def test_a_number_with_thousands_of_digits_is_refused():
    with pytest.raises(MalformedBody) as caught:
        read_request(b'{"Pod":' + b"9" * 10_000 + b"}")
    assert str(caught.value) == (
        "the body is not readable JSON: a number has more than 4300 digits; shorten it, or write it as a string")


def test_a_malformed_body_changes_nothing(kit):
    extender = asking(kit)
    with pytest.raises(MalformedBody):
        extender.answer(Verb.FILTER, b"{")
    assert (extender.recent, extender.pins) == ((), 0)
    assert ask(extender, Verb.FILTER, ["a"]) == result(["a"])


# What goes wrong


class Broken:
    def filter(self, state, pod, snapshot, rows):
        raise ValueError("broken")

    def score(self, state, pod, snapshot, rows):
        raise ValueError("broken")


def test_a_filter_that_raises_refuses_with_its_error_and_is_counted(kit):
    extender = asking(kit, kit.plugin("F", Broken()))
    assert ask(extender, Verb.FILTER, ["a"]) == result([], failed={"a": "F: PolicyError: ValueError: broken"})
    assert extender.recent[-1].errors == {("F", Point.FILTER, ""): 1}


def test_a_score_that_raises_counts_nothing_and_the_others_go_on(kit):
    extender = asking(kit, kit.plugin("F", Broken(), points=(Point.SCORE,)), kit.plugin("S", kit.gives(b=5)))
    assert ask(extender, Verb.PRIORITIZE, ["a", "b"]) == [{"Host": "a", "Score": 0}, {"Host": "b", "Score": 10}]
    assert extender.recent[-1].errors == {("F", Point.SCORE, ""): 1}


class Speechless:
    """Says no, and fails or has nothing to say when it is asked why."""

    def __init__(self, *why):
        self.why = why

    def filter(self, state, pod, snapshot, rows):
        return Answer(np.zeros(snapshot.size, np.bool_), *self.why)


@pytest.mark.parametrize(("why", "told"), [
    ((), "refused, and the plugin does not say why"),
    ((lambda row: {}[row],), "PolicyError: why is not known: KeyError: 0"),
])
def test_a_refusal_stands_without_its_reason(kit, why, told):
    extender = asking(kit, kit.plugin("F", Speechless(*why)))
    assert ask(extender, Verb.FILTER, ["a"]) == result([], failed={"a": f"F: {told}"})


def test_what_nobody_foresaw_is_told_in_the_protocols_terms(kit, caplog):
    class Stopped(Timer):
        broken = False

        def __call__(self):
            if self.broken:
                raise RuntimeError("no time")
            return 0.0

    timer = Stopped()
    extender = asking(kit, timer=timer)
    timer.broken = True
    assert ask(extender, Verb.FILTER, ["a"]) == result(None, error="koord-policy: RuntimeError: no time")
    assert ask(extender, Verb.PRIORITIZE, ["a"]) == [{"Host": "a", "Score": 0}]
    assert [record.result for record in extender.recent] == ["error", "error"]
    assert "deciding about shop/p failed" in caplog.text


def test_only_the_last_decisions_are_remembered(kit):
    extender = asking(kit)
    for number in range(70):
        ask(extender, Verb.FILTER, ["a"], uid=str(number))
    assert [record.uid for record in extender.recent] == [str(number) for number in range(6, 70)]


def test_a_generation_whose_plugins_cannot_be_made_leaves_the_one_before(kit):
    def refuse(args, handle):
        raise ValueError("not today")

    live = Live(Registry.of([kit.plugin("F", kit.refuses("a"))], generation=1))
    extender = asking(kit, live=live)
    live.replace(lambda: [kit.plugin("G", refuse, points=(Point.FILTER,))])
    assert ask(extender, Verb.FILTER, ["a", "b"]) == result(["b"], failed={"a": "F: no a"})
    assert "not today" in str(extender.scheduler.hot_swap.fault)


class Worded:
    """Refuses every node for a reason of its own."""

    def filter(self, state, pod, snapshot, rows):
        return Answer(np.zeros(snapshot.size, np.bool_), lambda row: Refusal("rule", f"no {snapshot.names[row]}"))


def test_what_a_record_leaves_out_is_counted(kit):
    names = [f"n{number:02}" for number in range(30)]
    extender = asking(kit, kit.plugin("F", Worded()), cluster=kit.cluster(*names))
    ask(extender, Verb.FILTER, names)
    told = extender.recent[-1].to_json()
    assert (len(told["refusals"]), told["refusalsLeftOut"], told["refusals"][0]) == (20, 10, {
        "plugin": "F", "reason": "no n00", "count": 1, "nodes": ["n00"], "enforcement": "Enforce"})
    extender = asking(
        kit, kit.plugin("F", kit.refuses(*names[:8])), kit.plugin("S", kit.gives(n00=1)), cluster=kit.cluster(*names),
    )
    ask(extender, Verb.FILTER, names[:8])
    ask(extender, Verb.PRIORITIZE, names)
    refused, scored = (each.to_json() for each in extender.recent[-2:])
    assert [each.get("nodesLeftOut", 0) + len(each["nodes"]) for each in refused["refusals"]] == [
        each["count"] for each in refused["refusals"]]
    assert (len(scored["best"]), scored["bestLeftOut"]) == (10, 20)
