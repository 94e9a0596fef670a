from __future__ import annotations

from koordpolicy.engine.scheduler.extensions.status_writes import FIRST_RETRY, LONGEST_RETRY, StatusWrites
from koordpolicy.testing import SECOND, FakeClock, FakeFramework

ITEM = {"kind": "PodGroup", "metadata": {"name": "g", "namespace": "ml"}, "status": {}}


def desired(phase):
    return {**ITEM, "status": {"phase": phase}}


def start():
    clock = FakeClock(0)
    framework = FakeFramework(ITEM, clock=clock)
    return clock, framework, StatusWrites(framework.handle("PodGroupStatus"))


def test_an_object_is_written_once_until_the_cluster_shows_it():
    clock, framework, writes = start()
    item = framework.cluster.object("PodGroup", "ml/g")
    assert writes.patch(item, desired("Pending"))
    clock.advance(1)
    assert not writes.patch(item, desired("Pending"))
    assert not writes.patch(item, desired("Scheduled"))
    framework.upsert(desired("Pending"))
    assert writes.patch(framework.cluster.object("PodGroup", "ml/g"), desired("Scheduled"))
    assert [modified["status"]["phase"] for _, modified in framework.client.patches] == ["Pending", "Scheduled"]


def test_a_write_that_the_cluster_never_shows_is_repeated_more_and_more_rarely(caplog):
    clock, framework, writes = start()
    framework.client.failures = [OSError("409: try again")]
    item, sent = framework.cluster.object("PodGroup", "ml/g"), []
    for second in range(30 * 60):
        if writes.patch(item, desired("Pending")):
            sent.append(second)
        clock.advance(1)
    assert sent == [0, 5, 15, 35, 75, 155, 315, 615, 915, 1215, 1515]
    assert [record.getMessage() for record in caplog.records] == ["PodGroup `ml/g` was not written: 409: try again"]


def test_objects_of_one_name_are_apart():
    _, framework, writes = start()
    others = [{**ITEM, "kind": "ElasticQuota"}, {**ITEM, "metadata": {"name": "g", "namespace": "web"}}]
    for item in (ITEM, *others):
        assert writes.patch(item, {**item, "status": {"phase": "x"}})
    assert len(framework.client.patches) == 3


def test_objects_that_are_as_they_should_be_are_forgotten():
    clock, framework, writes = start()
    writes.patch(framework.cluster.object("PodGroup", "ml/g"), desired("Pending"))
    clock.now += FIRST_RETRY + 3 * LONGEST_RETRY + SECOND
    other = {**ITEM, "metadata": {"name": "other", "namespace": "ml"}}
    writes.patch(other, {**other, "status": {"phase": "x"}})
    assert list(writes._sent) == [("PodGroup", "ml", "other")]
