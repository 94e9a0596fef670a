from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from koordpolicy.builtin_plugins.descheduler.custom_priority.plugin import CustomPriority, check_args, read_args
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.descheduler.argument_faults import ArgumentError
from tests.balance_cycles import Json, Server, evicted, kept, node, pod, run

ORDER = [
    {"name": "gold", "nodeSelector": {"matchLabels": {"tier": "gold"}}},
    {"name": "silver", "nodeSelector": {"matchLabels": {"tier": "silver"}}},
    {"name": "rest", "nodeSelector": {}},
]


def on(name: str, tier: str = "", **given: Any) -> Json:
    return node(name, labels={"tier": tier} if tier else {}, **given)


def priority(objects: list[Json], **args: Any):
    return run("CustomPriority", objects, **{"evictionOrder": ORDER, **args})


GOLD = [on("g", "gold"), pod("a", "g", "2", "1Gi"), pod("b", "g", "1", "2Gi"), pod("c", "g", "1", "1Gi")]
CHEAP = [on("cheap")]


def test_pods_leave_expensive_nodes_small_ones_first_and_no_room_is_reserved():
    result = priority([*GOLD, on("cheap", cpu="2")])
    assert [(each.pod, each.decision.rule, each.decision.reason) for each in result.evicted] == [
        (f"d/{name}", "gold", "evicting from gold priority resource to lower priority resource") for name in "cba"]
    assert {(note.node, note.role, note.message) for note in result.node_notes} == {
        ("g", "source", "level gold"), ("cheap", "target", "")}


def test_pods_leave_each_level_for_all_later_ones_but_the_last_one():
    levels = [on("g", "gold"), pod("a", "g", "1"), on("s", "silver", cpu="500m"), pod("b", "s", "250m"),
              on("n"), pod("c", "n", "1")]
    assert evicted(priority(levels)) == ["a", "b"]


@pytest.mark.parametrize(("args", "stays"), [
    ({"paused": True}, {}), ({"dryRun": True}, dict.fromkeys("abc", "dryRun")),
    ({"nodeSelector": {"matchLabels": {"tier": "gold"}}}, {}), ({"evictableNamespaces": {"exclude": ["d"]}}, {}),
    ({"evictableNamespaces": {"include": ["e"]}}, {}),
    ({"podSelectors": [{"name": "n", "selector": {"matchLabels": {"a": "b"}}}]}, {}),
    ({"evictionOrder": ORDER[:2]}, {}),
])
def test_arguments_that_say_so_keep_all_pods(args, stays):
    result = priority([*GOLD, *CHEAP], **args)
    assert (evicted(result), kept(result), result.error) == ([], stays, "")


def test_pods_that_no_cheaper_node_takes_stay_unless_node_fit_is_off():
    small = on("small", cpu="1")
    result = priority([*GOLD, small])
    assert (evicted(result), kept(result)) == (["c", "b"], {"a": "nodeFit"})
    assert evicted(priority([*GOLD, small], nodeFit=False)) == ["c", "b", "a"]


def test_after_five_misfits_in_a_row_no_more_pods_are_tried():
    apart: Json = {"nodeSelector": {"no": "node"}}
    pods = [pod(f"p{each}", "g", f"{each + 1}m", **(Json() if each in (1, 7) else apart)) for each in range(8)]
    result = priority([on("g", "gold"), *pods, *CHEAP])
    assert evicted(result) == ["p1"]
    assert [each.decision.message for each in result.staying] == [
        *["no node of a cheaper level takes it"] * 6, "not tried: 5 pods in a row before it fit on no node"]


def test_finished_pods_leave_too_and_pods_that_must_stay_do_not():
    result = run("CustomPriority", [*GOLD, pod("done", "g", phase="Succeeded"), *CHEAP], kept=("a",),
                 evictionOrder=ORDER)
    assert (evicted(result), kept(result)) == (["done", "c", "b"], {"a": "kept"})


def test_pods_that_may_not_leave_now_stay_and_their_node_is_not_drained():
    result = run("CustomPriority", [*GOLD, *CHEAP], not_now=("b",), evictionOrder=ORDER)
    assert (evicted(result), kept(result)) == (["c", "a"], {"b": "notNow"})
    server = Server()
    drained = run("CustomPriority", [*GOLD, *CHEAP], not_now=("b",), server=server, dry_run=False, evictionOrder=ORDER,
                  mode="DrainNode", autoCordon=True)
    assert (evicted(drained), kept(drained), server.writes) == (
        [], {"a": "DrainNode", "b": "notNow", "c": "DrainNode"}, [])


# DrainNode

DRAIN = {"mode": "DrainNode"}


def test_a_node_is_drained_only_if_there_is_room_for_all_its_pods():
    result = priority([*GOLD, *CHEAP], **DRAIN)
    assert [(each.pod, each.decision.reason) for each in result.evicted] == [
        (f"d/{name}", "drain node g (sourcePriority=gold)") for name in "cba"]
    short = priority([*GOLD, on("cheap", cpu="3")], **DRAIN)
    assert (evicted(short), kept(short)) == ([], dict.fromkeys("abc", "DrainNode"))
    assert {of.message for _, _, of in short.staying} == {"d/a fits on no node of a cheaper level, so g is not drained"}


def test_the_pods_of_one_drained_node_take_the_room_of_the_next_ones():
    second = [on("h", "gold"), pod("d", "h", "1")]
    result = priority([*GOLD, *second, *CHEAP], **DRAIN)
    assert (evicted(result), kept(result)) == (["c", "b", "a"], {"d": "DrainNode"})
    assert evicted(priority([*GOLD, *second, *CHEAP, on("cheap-2")], **DRAIN)) == ["c", "b", "a", "d"]


def test_the_number_of_pods_is_room_too_unless_a_node_states_none():
    assert evicted(priority([*GOLD, on("cheap", pods="2")], **DRAIN)) == []
    assert evicted(priority([*GOLD, on("cheap", pods="3")], **DRAIN)) == ["c", "b", "a"]
    assert evicted(priority([*GOLD, on("cheap", pods="")], **DRAIN)) == ["c", "b", "a"]


def test_without_node_fit_only_room_counts():
    apart = [on("g", "gold"), pod("a", "g", "1", nodeSelector={"no": "node"})]
    assert evicted(priority([*apart, *CHEAP], **DRAIN)) == []
    assert evicted(priority([*apart, *CHEAP], **DRAIN, nodeFit=False)) == ["a"]


def drain(*refuses: str, extra: tuple[Json, ...] = (), dry_run: bool = False, **args: Any) -> Server:
    server = Server(*refuses)
    run("CustomPriority", [*GOLD, *extra, *CHEAP], server=server, dry_run=dry_run,
        **{"evictionOrder": ORDER, "mode": "DrainNode", "autoCordon": True, **args})
    return server


def test_a_node_is_cordoned_before_it_is_drained():
    assert [what for what, _ in drain().writes] == ["Node g", "evict c", "evict b", "evict a"]
    assert drain().writes[0] == ("Node g", True)


def test_nothing_is_cordoned_in_a_dry_run_or_if_the_node_cannot_be_drained():
    assert drain(dryRun=True).writes == []
    assert drain(dry_run=True).writes == []
    assert drain(extra=(pod("huge", "g", "8"),)).writes == []


def test_an_eviction_that_fails_ends_the_drain_and_uncordons_the_node():
    assert drain("b").writes == [
        ("Node g", True), ("evict c", "drain node g (sourcePriority=gold)"), ("Node g", False)]


def test_a_node_that_was_cordoned_before_stays_cordoned():
    server = Server("b")
    cordoned = node("g", labels={"tier": "gold"}, spec={"unschedulable": True})
    run("CustomPriority", [cordoned, *GOLD[1:], *CHEAP], server=server, dry_run=False, evictionOrder=ORDER,
        mode="DrainNode", autoCordon=True)
    assert [what for what, _ in server.writes] == ["evict c"]


def test_a_node_that_cannot_be_cordoned_is_drained_all_the_same():
    assert [what for what, _ in drain("g").writes] == ["evict c", "evict b", "evict a"]


def test_only_evicted_pods_take_room_after_a_drain_that_failed():
    second = (on("h", "gold"), pod("d", "h", "3"))
    # `c` takes 1 of 4 cores; `b` and `a`, which stay, take none.
    assert [what for what, _ in drain("b", extra=second, autoCordon=False).writes] == ["evict c", "evict d"]


def test_a_dry_run_lists_the_cordons():
    result = priority([*GOLD, *CHEAP], **DRAIN, autoCordon=True)
    assert [(each.kind, each.key, each.message) for each in result.changes] == [
        ("Node", "g", "cordoned, to be drained")]


def test_a_node_explains_its_level():
    snapshot = Cluster([*GOLD, on("s", "silver"), *CHEAP]).snapshot(0)

    def told(name: str, **args: Any) -> list[str]:
        plugin = CustomPriority(read_args(check_args({"evictionOrder": ORDER, **args})))
        return [each.text for each in plugin.explain_node(snapshot, np.arange(3, dtype=np.intp), name)]

    assert told("g") == ["g is of level gold: its pods may go to silver, rest"]
    assert told("cheap") == ["cheap is of level rest, and no cheaper level has nodes"]
    others = [ORDER[1], {"name": "none", "nodeSelector": {"matchLabels": {"a": "b"}}}]
    assert told("g", evictionOrder=others) == ["no level of `evictionOrder` selects g"]
    assert told("g", paused=True) == ["it is paused (`paused: true`)"]


@pytest.mark.parametrize(("order", "fault"), [
    (None, "evictionOrder: CustomPriority requires at least 2 resource priority levels"),
    (ORDER[:1], "evictionOrder: CustomPriority requires at least 2 resource priority levels"),
    ([ORDER[0], {"nodeSelector": {}}], "evictionOrder[1].name: priority name cannot be empty"),
    ([ORDER[0], ORDER[0]], "evictionOrder[1].name: duplicate priority name: gold"),
    ([ORDER[0], {"name": "b"}], "evictionOrder[1]: priority b must have a nodeSelector"),
    ([ORDER[0], {"name": "b", "nodeSelector": {"matchLabels": {"-": "x"}}}],
     "evictionOrder[1].nodeSelector: invalid selector: "),
])
def test_invalid_arguments_are_refused_with_their_field(order, fault):
    with pytest.raises(ArgumentError) as refused:
        check_args({"evictionOrder": order})
    assert str(refused.value).startswith(fault)


def test_an_unknown_mode_is_best_effort():
    assert evicted(priority([*GOLD, on("cheap", cpu="3")], mode="Drain")) == ["c", "b", "a"]
