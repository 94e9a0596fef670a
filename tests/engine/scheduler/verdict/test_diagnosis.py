from __future__ import annotations

import json

from koordpolicy.engine.framework.points import Code, Framework, Point, Refusal
from koordpolicy.engine.framework.registry import Plugin
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler
from koordpolicy.engine.scheduler.verdict.diagnosis import diagnosis_of
from koordpolicy.plugin import Nomination


class Says:
    """Refuses the pod as a whole, or makes room, as it is told."""

    def __init__(self, answer):
        self.pre_filter = lambda state, pod, snapshot: answer
        self.post_filter = lambda state, pod, snapshot, refused: answer


def plugin(name, answer, point):
    return Plugin(name, Framework.SCHEDULER, (point,), lambda args, handle: Says(answer), name, name)


def test_a_pod_that_no_node_takes_is_diagnosed_by_plugin_and_reason(kit):
    scheduler = Scheduler(
        kit.cluster("a", "b"),
        kit.live(kit.plugin("F", kit.refuses("a", message="hot")), kit.plugin("G", kit.refuses("b"))),
    )
    assert diagnosis_of(scheduler.decide(kit.pod("p")), 0) == {
        "timestamp": "1970-01-01T00:00:00Z", "questionedKey": "default/p", "nominatedNode": "", "preFilterMessage": "",
        "topologyKeyToExplain": "", "isRootCausePod": True,
        "scheduleDiagnosis": {
            "schedulingMode": "Pod", "alreadyWaitForBound": 0, "nodeOfferSlot": {},
            "nodeFailedDetails": [
                {"failedPlugin": "F", "reason": "hot a", "preemptMightHelp": True, "failedNodes": ["a"]},
                {"failedPlugin": "G", "reason": "no b", "preemptMightHelp": True, "failedNodes": ["b"]},
            ],
        },
        "preemptionDiagnosis": None, "suggestion": None,
    }


def test_a_pod_that_is_refused_before_any_node_says_so_of_all(kit):
    refusal = Refusal("", "no quota", Code.UNRESOLVABLE)
    found = diagnosis_of(
        Scheduler(kit.cluster("a", "b"), kit.live(plugin("Q", refusal, Point.PRE_FILTER))).decide(kit.pod("p")), 0,
    )
    assert (found["preFilterMessage"], found["scheduleDiagnosis"]["nodeFailedDetails"]) == (
        "no quota", [{"failedPlugin": "Q", "reason": "no quota", "preemptMightHelp": False, "failedNodes": ["a", "b"]}],
    )


def test_a_pod_for_which_others_leave_waits_for_them(kit):
    victim = kit.pod("low")
    plugins = [kit.plugin("F", kit.refuses("a")), plugin("P", Nomination("a", (victim,)), Point.POST_FILTER)]
    found = diagnosis_of(Scheduler(kit.cluster("a"), kit.live(*plugins)).decide(kit.pod("p")), 0)
    assert (found["nominatedNode"], found["preemptionDiagnosis"], found["suggestion"]) == (
        "a", {"node": "a", "victims": ["default/low"], "failures": []},
        {"type": "WaitingVictimReleased", "message": "wait for default/low to leave a"},
    )


def test_the_log_has_the_diagnosis_of_pods_without_a_node_where_that_is_switched_on(kit, caplog):
    scheduler = Scheduler(kit.cluster("a"), kit.live(kit.plugin("F", kit.refuses("a"))))
    scheduler.debug.diagnosis = True
    with caplog.at_level("INFO", "koordpolicy.scheduler"):
        scheduler.schedule(kit.pod("p"))
    [line] = caplog.messages
    assert json.loads(line.removeprefix("diagnosis: "))["questionedKey"] == "default/p"
