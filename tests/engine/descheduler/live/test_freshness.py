from __future__ import annotations

from koordpolicy.engine.cluster.sources.changes import KindView
from koordpolicy.engine.descheduler.live.freshness import stale_kinds


def test_a_kind_is_stale_once_nothing_was_heard_of_it_for_longer_than_the_limit():
    views = {"Node": KindView(70.0), "Pod": KindView(39.9, "refused"), "NodeMetric": KindView(40.0),
             "Device": KindView(1.0), "Namespace": KindView(0.0, "403")}
    kinds = {"Node", "Pod", "NodeMetric", "Namespace", "PodGroup"}
    assert stale_kinds(views, kinds, 100.0, 60.0) == (
        "nothing was heard of Pod objects for 60 s, more than 60 s: refused",)
    assert stale_kinds(views, {"Node"}, 200.0, 60.0) == (
        "nothing was heard of Node objects for 130 s, more than 60 s",)
