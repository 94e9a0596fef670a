from __future__ import annotations

import numpy as np
import pytest

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.points import Answer, Framework, Point, Refusal, Scores
from koordpolicy.engine.framework.registry import Live, Plugin, Registry


def make_node(name, cpu="4", memory="8Gi", pods="110", **rest):
    return {
        "kind": "Node", "metadata": {"name": name}, "spec": {},
        "status": {"allocatable": {"cpu": cpu, "memory": memory, "pods": pods}}, **rest,
    }


def make_pod(name="p", cpu="1", memory="1Gi", **spec):
    container = {"name": "main", "resources": {"requests": {"cpu": cpu, "memory": memory}}}
    return PodInfo.of({"kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container], **spec}})


class Refuses:
    """Refuses the nodes that it is given."""

    def __init__(self, *names, message="no"):
        self.names, self.message, self.asked = names, message, []

    def filter(self, state, pod, snapshot, rows):
        self.asked.append(rows.tolist())
        passed = np.array([name not in self.names for name in snapshot.names], np.bool_)
        return Answer(passed, lambda row: Refusal("rule", f"{self.message} {snapshot.names[row]}"))


class Gives:
    """Gives each node the score it is given, 0 to the others."""

    def __init__(self, **scores):
        self.scores = scores

    def score(self, state, pod, snapshot, rows):
        return Scores(np.array([self.scores.get(name, 0) for name in snapshot.names], np.int64))


POINTS = {
    "pre_filter": Point.PRE_FILTER, "filter": Point.FILTER, "filter_node": Point.FILTER, "score": Point.SCORE,
    "score_node": Point.SCORE, "reserve": Point.RESERVE,
}


def make_plugin(name, instance, **rest):
    points = tuple(dict.fromkeys(point for method, point in POINTS.items() if hasattr(instance, method)))
    make = instance if callable(instance) and not hasattr(instance, "filter") else lambda args, handle: instance
    return Plugin(
        name, Framework.SCHEDULER, rest.pop("points", points), make, f"origin of {name}", rest.pop("digest", name),
        **rest,
    )


@pytest.fixture
def kit():
    """Clusters and plugins for the tests of this folder."""

    class Kit:
        node, pod, plugin = staticmethod(make_node), staticmethod(make_pod), staticmethod(make_plugin)
        refuses, gives = Refuses, Gives

        @staticmethod
        def cluster(*names):
            return Cluster(make_node(name) for name in names)

        @staticmethod
        def live(*plugins, generation=1):
            return Live(Registry.of(plugins, generation=generation))

    return Kit
