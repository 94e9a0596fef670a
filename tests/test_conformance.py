"""The behaviour of the servers in a live cluster, by number: each item has tests with its number in their names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parent

ITEMS: Final[Mapping[int, str]] = dict(enumerate((
    # The API client
    "the first list takes any version, a later one none older than the last",
    "watches take bookmarks and live for 300 to 600 s",
    "a bookmark moves the version at which a watch goes on",
    "an expired version within a watch leads to a list, whose difference is delivered",
    "an expired version at the start of a watch does the same",
    "watches that end at once are started ever more slowly",
    "a refused connection of a watch leads to no list",
    "429 with Retry-After is repeated ten times at most, without it returned",
    "a refusal in plain text is read",
    "where streamed lists are refused, objects are listed and watched",
    "an object that was created anew is one change with two UIDs",
    "a pod that ends leaves the store as it was before",
    "a replaced token is used within a minute, and at once after a 401",
    "watches do not wait for the limit of requests",
    "a connection on which nothing arrives is opened again",
    "a server that lags behind moves the store never backwards",
    "a status patch is tried four times within half a second",
    # The Lease
    "a standby takes over 15 to 20 s after its leader was killed",
    "a leader that is stopped releases the Lease",
    "a leader that cannot renew ends, and binds nothing afterwards",
    "the time of day does not count",
    # The scheduler
    "a binding names pod, UID and node, and has an event",
    "a pod that another one has bound leaves its room, and is not bound again",
    "a binding whose answer is lost is not repeated",
    "a pod that is gone is forgotten",
    "a pod of another scheduler is not bound but counts",
    "a pod that fits nowhere has its condition and one event series, without a second patch",
    "a plugin's exception is an error of the scheduler",
    "a long message is cut in the event, and complete in the condition",
    "without nodes the message says so",
    "a gated pod is left alone until its gate is removed",
    "attempts back off from one to ten seconds",
    "a parked pod is tried again after five minutes",
    "a change moves only the pods that it may help",
    "a victim is marked, deleted and reported once, and its preemptor has the nomination",
    "a victim that is gone holds up nothing",
    "a preemptor clears the nominations of lower pods",
    "lower pods are tried again when a nominated pod is deleted",
    "a pod that is deleted while it is bound leaves its room at once",
    "a pod is bound after its claim, and goes back when the provisioner gives up",
    "a claim that is never bound ends the wait after its timeout",
    "a comparison on demand finds and heals what differs",
    "nothing is bound before all bound pods are counted, and readiness says so",
    "a new leader whose watch lags over-commits no node",
    "all metrics have their types and buckets",
    "a Reservation becomes available, and its consumer says so in its binding",
    "a PodGroup waits for its members, and follows them",
    "the status of an ElasticQuota follows, and is quiet otherwise",
    # The descheduler
    "an exhausted budget is left alone for its back-off",
    "a budget that is behind is left alone as long as the server says",
    "two budgets of a pod are a failure",
    "a pending pod is evicted whatever its budget says",
    "a dry run deletes nothing",
    "a migration has Koordinator's order of writes, and outlives its process",
    "a job that is over fails, and its reservation is deleted",
    # The node agent and the manager
    "pods stay while the kubelet answers nothing, and are stale after a limit",
    "usage is reported after an interval, again after a conflict, and nothing is created",
    "a changed ConfigMap changes the NodeSLOs that it concerns",
    "stale measurements remove batch resources, and small changes are not written",
    "what a killed agent left is given back by the next one",
    "a colocation profile rewrites a pod, whose classes do not change afterwards",
    "a quota with pods is not deleted",
    "each server ends soon after SIGTERM, without a Lease",
    "with the shipped roles no request is refused",
), start=1))


def numbers(text: str) -> set[int]:
    """The numbers in the names of a module's tests."""
    return {int(number) for name in re.findall(r"^(?:async )?def (test_l\d+_\w+)", text, re.MULTILINE)
            for number in re.findall(r"_l(\d+)(?=_)", name)}


def test_each_item_has_a_test_that_has_its_number():
    found: set[int] = set()
    for path in TESTS.rglob("test_*.py"):
        found |= numbers(path.read_text(encoding="utf-8"))
    assert found == ITEMS.keys()


def test_several_numbers_may_be_in_one_name():
    text = "def test_l4_l5_an_item():\nasync def test_l63_b():\ndef test_l7():\ndef test_l3_of_l2_x(): ..."
    assert numbers(text) == {4, 5, 63, 3, 2}
