from __future__ import annotations

import pickle

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine.experiments import recordings
from koordpolicy.engine.experiments.axes import parse, points
from koordpolicy.engine.experiments.recordings import Recordings
from koordpolicy.engine.experiments.runners import NotRun
from tests.engine.flight_recorder.recordings import SPREAD, Recorded, make_node, make_pod

PACK = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: fullest}
spec:
  params: {sign: 1}
  paramsSchema: {type: object, properties: {sign: {type: integer}}}
  score:
  - {name: fullest, expression: "params.sign > 0 ? requested.cpu * 100 / allocatable.cpu : 0"}
"""


@pytest.fixture
def flights(tmp_path):
    for name, pods in (("monday", 2), ("tuesday", 4)):
        run = Recorded(tmp_path / "flights" / name, [make_node("a"), make_node("b")], SPREAD)
        for number in range(pods):
            run.cluster.upsert(make_pod(f"p{number}"))
            run.schedule()
            run.after(1)
        run.close()
    (tmp_path / "spread.yaml").write_text(SPREAD)
    (tmp_path / "pack.yaml").write_text(PACK)
    return tmp_path / "flights"


def space(flights, *axes, policies=()):
    return Recordings([parse(axis) for axis in axes], flights, builtins=builtins, policies=policies)


def test_each_recording_is_replayed_under_each_policy(flights, tmp_path):
    found = space(flights, "recording=*", f"policy={tmp_path / 'spread.yaml'},{tmp_path / 'pack.yaml'}")
    results = [recordings.run(found.task(point)).figures for point in points(found.axes)]
    assert set(results[0]) == set(recordings.FIGURES)
    assert [(each["pods"], each["same"], each["elsewhere"]) for each in results] == [
        (2, 2, 0), (2, 1, 1), (4, 4, 0), (4, 2, 2)]


def test_params_are_an_axis_and_tasks_can_be_sent(flights, tmp_path):
    found = space(flights, "recording=tuesday", "params.sign=0,1", policies=[str(tmp_path / "pack.yaml")])
    found.check(points(found.axes))
    tasks = [pickle.loads(pickle.dumps(found.task(point))) for point in points(found.axes)]
    assert [recordings.run(task).figures["elsewhere"] for task in tasks][1] == 2
    assert found.inputs(tasks[0].point) == found.inputs(tasks[1].point)


def test_without_the_axis_all_recordings_are_replayed_or_the_one(flights):
    assert next(axis.values for axis in space(flights).axes if axis.name == "recording") == ("monday", "tuesday")
    assert next(axis.values for axis in space(flights / "monday").axes if axis.name == "recording") == (".",)


@pytest.mark.parametrize(("axis", "message"), [
    ("recording=mondya", "there is no recording `mondya` in .*: did you mean `monday`?"),
    ("workload=x", "there is no axis `workload` over flight recordings"),
    ("seed=x", "`seed=x`: expected a whole number"),
])
def test_axes_that_do_not_exist_are_refused(flights, axis, message):
    with pytest.raises(ValueError, match=message):
        space(flights, axis)


def test_a_directory_without_recordings_is_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no segment of a flight recording in"):
        space(tmp_path)


def test_policies_that_read_more_are_not_run_and_say_why(flights, tmp_path):
    (tmp_path / "more.yaml").write_text(PACK.replace("params.sign > 0", "has(pod.spec.volumes)"))
    found = space(flights, "recording=monday", policies=[str(tmp_path / "more.yaml")])
    with pytest.raises(NotRun, match=r"the recording does not contain Pod\.spec\.volumes \(read by `fullest`\)"):
        recordings.run(found.task(next(iter(points(found.axes)))))
