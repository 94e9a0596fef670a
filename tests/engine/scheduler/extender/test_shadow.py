from __future__ import annotations

import json
from collections import Counter

import pytest

from koordpolicy.engine.framework.points import Enforcement, Refusal
from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.reload.status import ReloadStatus
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler
from koordpolicy.engine.scheduler.extender.decision_record import Verb
from koordpolicy.engine.scheduler.extender.protocol import Extender
from koordpolicy.engine.scheduler.extender.shadow import Shadow, ShadowDifference, ShadowResult, ShadowTally


class Timer:
    """Seconds that pass when somebody says so, and some with each look."""

    now = 0.0
    step = 0.0

    def __call__(self):
        self.now += self.step
        return self.now


class NoReloader:
    """Stands for one that has nothing to tell."""

    def status(self):
        return ReloadStatus(1, "")

    def close(self):
        pass


class Breaks:
    """Fails as a plugin does that has a fault, and does not even say at which point."""

    def __init__(self, *methods):
        for method in methods:
            setattr(self, method, self.fail)

    def fail(self, *_):
        raise RuntimeError("broken")


def body(*names, uid="u"):
    pod = {"metadata": {"name": "p", "namespace": "shop", "uid": uid}, "spec": {"containers": [{"name": "main"}]}}
    return json.dumps({"Pod": pod, "NodeNames": names or list("abc")}).encode()


class Server:
    """An extender with a shadow, both made of plugins, and what came of the last comparison."""

    def __init__(self, kit, active, shadow, *, share=1.0, timer=None, nodes="abc"):
        self.timer = timer or Timer()
        self.active, self.beside = kit.live(*active), kit.live(*shadow) if shadow is not None else Live()
        cluster = kit.cluster(*nodes)
        scheduler = Scheduler(cluster, self.active)
        self.shadow = Shadow(Scheduler(cluster, self.beside), self.beside, self.active, NoReloader(), timer=self.timer,
                             share=share)
        self.extender = Extender(scheduler, clock=lambda: 7_000_000_000, timer=self.timer, shadow=self.shadow)

    def ask(self, verb, *names, uid="u"):
        answer = json.loads(self.extender.answer(verb, body(*names, uid=uid)).body)
        self.extender.review()
        return answer

    @property
    def counts(self):
        return {result: count for result in ShadowResult if (count := self.shadow.agreement.tally.count(result))}


def test_a_shadow_that_answers_alike_is_the_same(kit):
    server = Server(kit, [kit.plugin("F", kit.refuses("b"))], [kit.plugin("G", kit.refuses("b"))])
    server.ask(Verb.FILTER)
    server.ask(Verb.PRIORITIZE, "a", "c")
    assert server.counts == {ShadowResult.SAME: 2}
    assert server.shadow.totals == Counter({("filter", ShadowResult.SAME): 1, ("prioritize", ShadowResult.SAME): 1})


def test_nodes_gained_and_lost_are_told_with_who_refuses_them(kit):
    server = Server(kit, [kit.plugin("F", kit.refuses("a", "b"))], [kit.plugin("G", kit.refuses("c"))])
    assert server.ask(Verb.FILTER)["NodeNames"] == ["c"]
    assert server.shadow.agreement.tally.sample() == (ShadowDifference(
        "filter", "shop/p", 7_000_000_000, 3, gained=("a", "b"), lost=("c",),
        why=("was refused by F: no a", "would be refused by G: no c")),)


def test_only_the_nodes_of_the_request_are_compared(kit):
    server = Server(kit, [], [kit.plugin("G", kit.refuses("c"))])
    server.ask(Verb.FILTER, "a", "b")
    assert server.counts == {ShadowResult.SAME: 1}


def test_scores_are_compared_as_the_priorities_that_are_answered(kit):
    server = Server(kit, [kit.plugin("S", kit.gives(a=10, b=50, c=90))], [kit.plugin("T", kit.gives(a=1, b=5, c=9))])
    server.ask(Verb.PRIORITIZE)
    assert server.counts == {ShadowResult.SAME: 1}
    server = Server(kit, [kit.plugin("S", kit.gives(a=10, b=50, c=90))], [kit.plugin("T", kit.gives(a=9, b=5, c=1))])
    server.ask(Verb.PRIORITIZE)
    assert server.shadow.agreement.tally.sample() == (
        ShadowDifference("prioritize", "shop/p", 7_000_000_000, 2, gained=("a",), lost=("c",)),)


def test_a_plugin_that_fails_in_the_shadow_is_counted_and_changes_no_answer(kit):
    server = Server(kit, [kit.plugin("F", kit.refuses("b"))], [kit.plugin("G", Breaks("filter"))])
    assert server.ask(Verb.FILTER)["NodeNames"] == ["a", "c"]
    assert (server.counts, server.shadow.agreement.failing) == ({ShadowResult.DIFFERS: 1}, {"G": 1})


def test_a_shadow_that_fails_as_a_whole_is_an_error_and_changes_no_answer(kit):
    server = Server(kit, [kit.plugin("F", kit.refuses("b"))], [kit.plugin("G", kit.refuses("b"))])
    server.shadow._scheduler.profile_of = Breaks("fail").fail
    assert server.ask(Verb.FILTER)["NodeNames"] == ["a", "c"]
    assert (server.counts, server.shadow.agreement.failing) == (
        {ShadowResult.ERROR: 1}, {"koord-policy: RuntimeError: broken": 1})


def test_without_a_valid_set_nothing_is_compared(kit):
    server = Server(kit, [kit.plugin("F", kit.refuses("b"))], None)
    server.ask(Verb.FILTER)
    assert (server.counts, server.shadow.totals) == ({}, Counter())


def test_counting_begins_anew_when_either_set_changes(kit):
    server = Server(kit, [kit.plugin("F", kit.refuses("b"))], [kit.plugin("G", kit.refuses("c"))])
    server.ask(Verb.FILTER)
    assert server.shadow.agreement.tally.compared == 1
    for live, name in ((server.beside, "H"), (server.active, "I")):
        live.replace(lambda name=name: [kit.plugin(name, kit.refuses("b"))])
        assert server.shadow.agreement.tally.compared == 0
        server.ask(Verb.FILTER)
        assert server.counts == {ShadowResult.SAME: 1}
    assert sum(server.shadow.totals.values()) == 3


def test_a_pod_between_its_two_calls_under_an_older_generation_is_skipped(kit):
    server = Server(kit, [kit.plugin("S", kit.gives(a=1))], [kit.plugin("S", kit.gives(a=1))])
    server.ask(Verb.FILTER)
    server.active.replace(lambda: [kit.plugin("T", kit.gives(b=1))])
    server.ask(Verb.PRIORITIZE)
    assert server.counts == {ShadowResult.SKIPPED: 1}


def test_the_shadow_takes_its_share_of_the_time_and_no_more(kit):
    timer = Timer()
    server = Server(kit, [], [kit.plugin("G", kit.refuses("c"))], share=0.1, timer=timer)
    timer.step = 0.3  # so long takes each look at the clock, and so each decision in the shadow
    for number in range(100):
        server.ask(Verb.FILTER, uid=str(number))
    assert server.counts[ShadowResult.SKIPPED] > 50
    assert 0 < server.shadow.seconds <= 0.1 * timer.now + 1


def test_a_share_of_nothing_compares_only_what_was_saved_at_start(kit):
    timer = Timer()
    server = Server(kit, [], [kit.plugin("G", kit.refuses("c"))], share=0.0, timer=timer)
    timer.step = 1.0
    for number in range(5):
        server.ask(Verb.FILTER, uid=str(number))
    assert server.counts == {ShadowResult.DIFFERS: 1, ShadowResult.SKIPPED: 4}


def test_differences_are_sampled_each_with_the_same_chance():
    chosen = Counter()
    for seed in range(300):
        tally = ShadowTally(seed=seed, most=5)
        for number in range(50):
            tally.add(ShadowResult.DIFFERS, ShadowDifference("filter", str(number), number, 1))
        assert (tally.compared, len(tally.sample())) == (50, 5)
        chosen.update(int(each.pod) for each in tally.sample())
    # 30 expected of each; a sample that keeps the first, or the last, would be far off.
    assert all(10 <= chosen[number] <= 60 for number in range(50))


def test_the_sample_shows_what_concerns_most_nodes_first():
    tally = ShadowTally()
    for nodes in (1, 9, 4):
        tally.add(ShadowResult.DIFFERS, ShadowDifference("filter", "p", nodes, nodes))
    assert [each["nodes"] for each in tally.to_json()["examples"]] == [9, 4, 1]


@pytest.mark.parametrize("enforcement", [Enforcement.AUDIT, Enforcement.WARN])
def test_what_is_not_enforced_is_compared_as_if_it_was(kit, enforcement):
    plugins = [kit.plugin("A", kit.refuses("c"), enforcement=enforcement), kit.plugin("F", kit.refuses("b")),
               kit.plugin("S", kit.gives(a=9, b=5, c=1)), kit.plugin("T", kit.gives(c=50), enforcement=enforcement)]
    server = Server(kit, plugins, None)
    assert server.ask(Verb.FILTER)["NodeNames"] == ["a", "c"]
    server.ask(Verb.FILTER, "a", "b")
    server.ask(Verb.PRIORITIZE)
    server.ask(Verb.PRIORITIZE, "a", "b")
    assert [(plugin, verb, how, tally.count(ShadowResult.SAME), tally.count(ShadowResult.DIFFERS), [
        (each.gained, each.lost, each.why) for each in tally.sample()])
        for plugin, verb, how, tally in server.extender.audits.read()] == [
        ("A", "filter", enforcement, 1, 1, [((), ("c",), ("would be refused by A: no c",))]),
        ("T", "prioritize", enforcement, 1, 1, [(("c",), ("a",), ("T",))])]


def test_a_pod_that_an_audited_plugin_would_refuse_as_a_whole_makes_a_difference(kit):
    class Never:
        def pre_filter(self, state, pod, snapshot):
            return Refusal("rule", "never")

    server = Server(kit, [kit.plugin("A", Never(), enforcement=Enforcement.AUDIT)], None)
    assert server.ask(Verb.FILTER)["NodeNames"] == ["a", "b", "c"]
    (_, _, _, tally), = server.extender.audits.read()
    assert [(each.nodes, each.why) for each in tally.sample()] == [(3, ("would be refused by A: never",))]


def test_a_node_that_is_refused_anyway_makes_no_difference(kit):
    server = Server(kit, [kit.plugin("A", kit.refuses("b"), enforcement=Enforcement.AUDIT),
                          kit.plugin("F", kit.refuses("b"))], None)
    server.ask(Verb.FILTER)
    assert [
        (tally.count(ShadowResult.SAME), tally.count(ShadowResult.DIFFERS))
        for *_, tally in server.extender.audits.read()
    ] == [(1, 0)]


def test_examples_and_nodes_that_are_not_shown_are_counted():
    tally = ShadowTally(most=2)
    for number in range(5):
        tally.add(ShadowResult.DIFFERS, ShadowDifference("filter", "p", number, 1))
    tally.add(ShadowResult.SAME)
    assert [(found["decisions"], len(found["examples"]), found["examplesLeftOut"])
            for found in (tally.to_json(), tally.to_json(1))] == [(6, 2, 3), (6, 1, 4)]
    assert "examplesLeftOut" not in ShadowTally().to_json()
    one = ShadowDifference("filter", "p", 0, 9, ("a",), ("b",), ("no",), gained_left_out=3, lost_left_out=4)
    assert one.to_json() == {"verb": "filter", "pod": "p", "at": 0.0, "nodes": 9, "gained": ["a"], "lost": ["b"],
                             "why": ["no"], "gainedLeftOut": 3, "lostLeftOut": 4}


def test_nodes_that_a_difference_does_not_name_are_counted(kit):
    names = [f"n{number}" for number in range(8)]
    server = Server(kit, [kit.plugin("F", kit.refuses(*names[1:]))], [], nodes=names)
    server.ask(Verb.FILTER, *names)
    (found,) = server.shadow.agreement.tally.sample()
    assert (found.gained, found.gained_left_out, found.lost_left_out) == (tuple(names[1:6]), 2, 0)
