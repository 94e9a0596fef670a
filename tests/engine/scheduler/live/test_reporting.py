from __future__ import annotations

from types import SimpleNamespace

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.points import Code, Point, Refusal
from koordpolicy.engine.framework.scheduler import QueuedPod
from koordpolicy.engine.scheduler.cycle.loop import Attempt
from koordpolicy.engine.scheduler.extensions.reservations import reserve_pod
from koordpolicy.engine.scheduler.live.reporting import AttemptReporter
from koordpolicy.engine.scheduler.verdict.verdict import Verdict
from koordpolicy.engine.serving.console_links import ConsoleLinks
from koordpolicy.testing import pod

RESERVATION = {
    "kind": "Reservation", "metadata": {"name": "r", "uid": "u"},
    "spec": {"template": {"spec": {**pod()["spec"], "schedulerName": "koord-policy"}}},
}


class Client:
    """The recorded events and the written conditions."""

    def __init__(self):
        self.events, self.conditions = [], []
        self.recorder = self.statuses = self

    def record(self, regarding, **of):
        fields = (of[name] for name in ("type", "reason", "action", "note", "controller"))
        self.events.append((regarding.resource.kind, regarding.name, regarding.uid, *fields))

    def write(self, pod, *, condition, nominated_node):
        self.conditions.append((pod.name, condition.reason, condition.message, nominated_node))


def report(pod, node=None):
    client = Client()
    refusal = None if node else ("Fits", Point.PRE_FILTER, Refusal("cpu", "no room", Code.UNSCHEDULABLE))
    verdict = Verdict(pod, "koord-policy", 1, ("one",), node, 0 if node else -1, refusal=refusal)
    AttemptReporter(client).observe(Attempt(QueuedPod(pod), verdict, 0, None if node else pod))
    return SimpleNamespace(events=client.events, conditions=client.conditions)


def test_a_pod_without_a_node_gets_an_event_and_a_condition():
    found = report(PodInfo.of(pod("a", schedulerName="koord-policy")))
    message = "0/1 nodes are available: no room."
    assert found.events == [
        ("Pod", "a", "uid-of-default-a", "Warning", "FailedScheduling", "Scheduling", message, "koord-policy")]
    assert found.conditions == [("a", "Unschedulable", message, "")]


def test_an_event_leads_to_the_decision_in_the_console_and_the_condition_does_not():
    client = Client()
    waiting = PodInfo.of(pod("a", schedulerName="koord-policy"))
    for length in (7, 3000):
        refusal = ("Fits", Point.PRE_FILTER, Refusal("cpu", "x" * length, Code.UNSCHEDULABLE))
        verdict = Verdict(waiting, "koord-policy", 1, ("one",), None, -1, refusal=refusal)
        reporter = AttemptReporter(client, links=ConsoleLinks("https://console.example.org"))
        reporter.observe(Attempt(QueuedPod(waiting), verdict, 0, waiting))
    link = " See https://console.example.org/#/pod?key=default%2Fa"
    short, long = (event[6] for event in client.events)
    assert short == f"0/1 nodes are available: xxxxxxx.{link}"
    assert (len(long), long.endswith(f"x ...{link}")) == (1024, True)
    assert [message for _, _, message, _ in client.conditions] == [
        f"0/1 nodes are available: {'x' * length}." for length in (7, 3000)]


def test_an_error_of_an_attempt_is_logged_once_for_all_pods(caplog):
    reporter = AttemptReporter(Client())
    for name in ("a", "b", "a"):
        failed = PodInfo.of(pod(name, schedulerName="koord-policy"))
        refusal = ("Binder", Point.BIND, Refusal("Binder", f'pods "{name}" is forbidden', Code.ERROR))
        verdict = Verdict(failed, "koord-policy", 1, ("one",), None, -1, refusal=refusal)
        reporter.observe(Attempt(QueuedPod(failed), verdict, 0, failed))
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("an attempt to schedule pod default/a failed, it is tried again: ")


def test_a_reservation_gets_events_and_no_condition_of_a_pod():
    reserved = reserve_pod(RESERVATION)
    assert vars(report(reserved)) == {"conditions": [], "events": [
        ("Reservation", "r", "u", "Warning", "FailedScheduling", "Scheduling", "0/1 nodes are available: no room.",
         "koord-policy")]}
    assert vars(report(reserved, "one")) == {"conditions": [], "events": [
        ("Reservation", "r", "u", "Normal", "Scheduled", "Binding", "Successfully assigned r to one", "koord-policy")]}
