from __future__ import annotations

from koordpolicy.engine.agent.pod_facts import PodFacts
from koordpolicy.engine.cluster.objects.pods import PodInfo


def pod(name):
    return PodInfo.of({"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": [{"name": "c"}]}})


def test_each_version_of_a_pod_is_computed_once():
    computed = []
    facts = PodFacts(lambda pod: computed.append(pod.name) or pod.name.upper())
    a, b, c = pod("a"), pod("b"), pod("c")
    assert facts.of((a, b)) == ("A", "B")
    assert facts.of([a, b]) == ("A", "B")
    assert facts.of((c, b)) == ("C", "B")
    assert facts.of((c, pod("b"))) == ("C", "B")
    assert computed == ["a", "b", "c", "b"]


def test_a_pod_that_went_away_is_not_cached():
    computed = []
    facts = PodFacts(lambda pod: computed.append(pod.name))
    a = pod("a")
    for pods in ((a,), (), (a,)):
        facts.of(pods)
    assert computed == ["a", "a"]
