from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine.cluster.sources import trace as traces
from koordpolicy.engine.experiments import replays
from koordpolicy.engine.experiments.axes import parse, points
from koordpolicy.engine.experiments.replays import STUDY, Replays, policy_of
from koordpolicy.engine.experiments.runners import NotRun
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.extensions.fragmentation import typical_pods
from koordpolicy.engine.scheduler.profiles.profile import PluginChoice
from koordpolicy.engine.scheduler.simulate import simulate
from koordpolicy.engine.scheduler.trace_profile import trace_profile

NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(f"n{n},64000,262144,{n % 3},T4\n" for n in range(9))
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n" + "".join(
    f"p{n},{1000 * (1 + n % 5)},1024,{int(n % 4 > 0)},{(0, 250, 500, 1000)[n % 4]}\n" for n in range(40))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "openb_node_list_gpu_node.csv").write_text(NODES)
    for name in ("default", "other"):
        (tmp_path / f"openb_pod_list_{name}.csv").write_text(
            PODS if name == "default" else PODS.replace(",500\n", ",600\n"),
        )
    return tmp_path


def space(folder, *axes, **rest):
    return Replays([parse(text) for text in axes], folder, builtins=builtins, **rest)


def outcomes(found):
    return {tuple(point.values()): replays.run(found.task(point)) for point in points(found.axes)}


def test_axes_that_are_not_named_have_one_value_and_the_six_policies_of_the_study(folder):
    assert {axis.name: axis.values for axis in space(folder).axes} == {
        "workload": ("default",), "policy": ("Random", "DotProd", "GpuClustering", "GpuPacking", "BestFit", "FGD"),
        "seed": (42,),
    }
    assert [axis.name for axis in space(folder, "seed=1", "policy=FGD").axes] == ["workload", "seed", "policy"]


def test_a_star_stands_for_every_workload_of_the_directory(folder):
    assert space(folder, "workload=*").axes[-1].values == ("default", "other")


def test_a_cluster_without_gpu_has_allocations_and_no_fragmentation(folder):
    (folder / "openb_node_list_gpu_node.csv").write_text(NODES.replace(",1,T4", ",0,T4").replace(",2,T4", ",0,T4"))
    (folder / "openb_pod_list_default.csv").write_text(
        PODS.splitlines()[0] + "\n" + "".join(f"p{n},1000,1024,0,0\n" for n in range(40)),
    )
    (outcome,) = outcomes(space(folder, "policy=FGD")).values()
    assert outcome.figures["failed"] == 0
    assert {name: value for name, value in outcome.figures.items() if "frag" in name and value} == {}


@pytest.mark.parametrize("name", list(STUDY))
def test_an_experiment_comes_to_what_the_replay_itself_comes_to(folder, name):
    found = space(folder, f"policy={name}", "seed=7", "tune=1.1")
    (outcome,) = outcomes(found).values()
    trace = traces.load(folder)
    typical = typical_pods(trace.pods)
    policy = policy_of(name)
    registry = replays.registry_of(policy.texts, builtins)
    profile = trace_profile(policy.profile, typical, registry.of_framework(Framework.SCHEDULER))
    settings = replays.Settings((profile,), seed=7)
    result = simulate(
        traces.generate(trace, seed=7, tune=1.1), Live(registry), settings, clock=itertools.count().__next__,
        typical=typical,
    )
    assert outcome.figures["failed"] == result.failed
    assert outcome.figures["gpu_alloc_pct"] == result.allocation(result.highest_load).gpu
    assert outcome.figures["frag_ratio_pct"] == round(result.fragmentation(result.highest_load)[1], 4)
    assert len(outcome.curves["gpu_alloc_pct"]) == result.highest_load + 1
    assert outcome.figures["errors"] == 0


def test_what_travels_to_another_process_is_all_that_is_needed(folder):
    found = space(folder, "policy=BestFit,FGD")
    tasks = [found.task(point) for point in points(found.axes)]
    for each in folder.iterdir():
        each.unlink()
    for task in pickle.loads(pickle.dumps(tasks)):
        assert replays.run(task).figures["arrivals"] > 0


def test_policies_of_ones_own_are_named_by_their_path_or_take_part_in_every_experiment(folder, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("""\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: mine}
spec:
  params: {most: 3}
  filter: [{name: few, expression: nodeInfo.pods < params.most}]
""")
    by_path = outcomes(space(folder, f"policy={mine}", "params.most=1..3"))
    found = [each.figures["arrivals"] - each.figures["failed"] for each in by_path.values()]
    assert found[0] == 9 < found[1] < found[2]
    assert [axis.values for axis in space(folder, policies=[str(mine)]).axes] == [("default",), ("-",), (42,)]
    (both,) = outcomes(
        space(folder, "policy=BestFit", policies=[str(mine)], enabled=(PluginChoice("RandomScore"),)),
    ).values()
    (without,) = outcomes(space(folder, "policy=BestFit")).values()
    assert both.figures["failed"] > without.figures["failed"]


def test_a_change_of_what_decides_is_seen_in_the_fingerprint(folder):
    point = {"workload": "default", "policy": "FGD", "seed": 42}
    first = space(folder).inputs(point)
    assert space(folder).inputs(point) == first
    assert space(folder, limit=3).inputs(point) != first
    assert space(folder, enabled=(PluginChoice("RandomScore"),), policies=()).axes != ()
    (folder / "openb_pod_list_default.csv").write_text(PODS.replace("p0,1000", "p0,2000"))
    assert space(folder).inputs(point) != first


def test_a_fingerprint_is_the_same_in_every_process(folder):
    pods = PODS.replace("gpu_milli\n", "gpu_milli,gpu_spec\n").replace(",250\n", ",250,T4|P100|V100\n")
    (folder / "openb_pod_list_default.csv").write_text("\n".join(
        line if line.count(",") == 5 else f"{line}," for line in pods.splitlines()))
    program = (
        "import sys; from pathlib import Path; from koordpolicy.__main__ import builtins\n"
        "from koordpolicy.engine.experiments.replays import Replays\n"
        "point = {'workload': 'default', 'policy': 'FGD', 'seed': 42}\n"
        "print(Replays([], Path(sys.argv[1]), builtins=builtins).inputs(point))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program, folder], env={**os.environ, "PYTHONHASHSEED": seed}, check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


@pytest.mark.parametrize(("axes", "message"), [
    (["polcy=FGD"], "there is no axis `polcy` over a trace: did you mean `policy`?"),
    (["policy=FDG"], "there is no policy `FDG`: did you mean `FGD`?"),
    (["workload=defualt"], "there is no workload `defualt` in `DIR`: did you mean `default`?"),
    (["seed=1.5"], "`seed=1.5`: expected a whole number"),
    (["tune=-1"], "`tune=-1`: expected a ratio from 0 to 100"),
    (["tieBreak=last"], "`tieBreak=last`: expected one of first, random"),
    (["policy=BestFit", "params.nothing=1"], "no policy has the param `nothing`: there are `largestCPU`, `largestGPU`"),
])
def test_what_there_is_not_is_told_before_anything_runs(folder, axes, message):
    with pytest.raises(ValueError, match=r".") as caught:
        (found := space(folder, *axes)).check(points(found.axes))
    assert str(caught.value).replace(str(folder), "DIR") == message


def test_a_param_of_another_type_is_told_before_anything_runs(folder):
    found = space(folder, "policy=BestFit", "params.largestCPU=big")
    told = "`largestCPU` is 128000.0 in the policies, and `big` is not a number"
    with pytest.raises(ValueError, match=told):
        found.check(points(found.axes))
    (point,) = points(found.axes)
    with pytest.raises(NotRun, match=told):
        replays.run(found.task(point))


def test_the_registry_is_made_once_for_experiments_that_share_it(folder):
    texts = policy_of("BestFit").texts
    first = replays.registry_of(texts, builtins)
    assert isinstance(first, Registry)
    assert replays.registry_of(policy_of("BestFit").texts, builtins) is first
    assert replays.registry_of(texts, builtins, (("largestCPU", 1.0),)) is not first
