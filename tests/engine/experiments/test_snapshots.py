from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine.cluster.sources import files
from koordpolicy.engine.experiments import snapshots
from koordpolicy.engine.experiments.axes import parse, points
from koordpolicy.engine.experiments.snapshots import Snapshots

PROJECT = Path(__file__).parents[3]
NOW = 1_760_000_000_000_000_000


def space(*axes, policies=("policies/scheduler",)):
    objects = list(files.load(PROJECT / "examples" / "cluster"))
    return Snapshots([parse(text) for text in axes], objects, now=NOW, builtins=builtins,
                     policies=[str(PROJECT / each) for each in policies])


def test_each_step_tells_what_the_policies_come_to():
    found = space("params.keep-off-hot-nodes.cpuPercent=1,100", "hotPercent=50")
    strict, loose = (snapshots.run(found.task(point)).figures for point in points(found.axes))
    assert set(strict) == set(loose) == set(snapshots.FIGURES)
    assert strict["pending"] >= loose["pending"]
    assert strict["pending"] + strict["placed"] == loose["pending"] + loose["placed"] > 0
    assert strict["errors"] == 0


def test_what_travels_to_another_process_is_all_that_is_needed():
    found = space("seed=1")
    (point,) = points(found.axes)
    task = found.task(point)
    assert snapshots.run(pickle.loads(pickle.dumps(task))).figures == snapshots.run(task).figures


def test_policies_may_be_an_axis_of_their_own():
    found = space(f"policy={PROJECT / 'policies/scheduler'},{PROJECT / 'policies/descheduler'}", policies=())
    one, other = points(found.axes)
    assert found.inputs(one) != found.inputs(other)
    found.check(points(found.axes))


def test_policies_of_other_profiles_decide_about_the_pods_that_name_those(tmp_path):
    (tmp_path / "gate.yaml").write_text("""\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: gate}
spec:
  profiles: [gpu-scheduler]
  params: {open: true}
  filter: [{name: gate, expression: params.open}]
""")
    objects = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {},
                "status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "10"}}}]
    objects += [
        {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "shop"},
            "spec": {"schedulerName": name, "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
        }
        for name in ("default-scheduler", "gpu-scheduler")
    ]
    found = Snapshots([parse("params.open=true,false")], objects, now=NOW, builtins=builtins, policies=[str(tmp_path)])
    assert [snapshots.run(found.task(point)).figures["pending"] for point in points(found.axes)] == [0, 1]


@pytest.mark.parametrize(("axis", "message"), [
    ("param.cpuPercent=1", "there is no axis `param.cpuPercent` over a cluster: "),
    ("hotPercent=0", "`hotPercent=0`: expected a whole percentage from 1 to 100"),
    ("workload=default", "there is no axis `workload` over a cluster: "),
])
def test_what_there_is_not_is_told_before_anything_runs(axis, message):
    with pytest.raises(ValueError, match=r".") as caught:
        space(axis)
    assert str(caught.value).startswith(message)
