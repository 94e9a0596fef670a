from __future__ import annotations

import pytest

from koordpolicy.engine.cluster.sources.go_random import GoRandom
from koordpolicy.engine.cluster.sources.trace import Trace, TraceNode, TracePod, generate, load
from koordpolicy.engine.source import PolicyError

NODES = "sn,cpu_milli,memory_mib,gpu,model\nb,8000,1024,2,T4\na,4000,2048,0,\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos\r\np,500,64,1,250,T4||P100,LS\r\nq,100,32,0,70,T4,BE\r\n"
)


@pytest.fixture
def write(tmp_path):
    def write(pods=PODS, nodes=NODES):
        (tmp_path / "openb_node_list_gpu_node.csv").write_bytes(nodes.encode())
        (tmp_path / "openb_pod_list_default.csv").write_bytes(pods if isinstance(pods, bytes) else pods.encode())
        return tmp_path

    return write


def complaints(directory):
    with pytest.raises(PolicyError) as caught:
        load(directory)
    return str(caught.value).replace(str(directory) + "/", "")


def test_a_trace_is_read_from_its_two_lists(write):
    assert load(write()) == Trace(
        (TraceNode("b", 8000, 1024, 2, "T4"), TraceNode("a", 4000, 2048, 0, "")),
        (TracePod("p", 500, 64, 1, 250, ("T4", "P100")), TracePod("q", 100, 32)),
    )


def test_all_faults_of_both_lists_are_told_with_their_places(write):
    directory = write(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,-1,64,1,1000\np,1,x,,5\nq,1,2\n,1,1,0,0\n",
        NODES + "c,1,1,2000,T4\n",
    )
    assert complaints(directory) == """\
openb_node_list_gpu_node.csv:4:7: error: `gpu` is `2000`
 4 | c,1,1,2000,T4
   |       ^^^^ expected a whole number from 0 to 1024
openb_pod_list_default.csv:2:3: error: `cpu_milli` is `-1`
 2 | p,-1,64,1,1000
   |   ^^ expected a whole number from 0 to 1000000000000
openb_pod_list_default.csv:3:1: error: `p` stands in the list twice, first in line 2
 3 | p,1,x,,5
   | ^ rename one
openb_pod_list_default.csv:3:5: error: `memory_mib` is `x`
 3 | p,1,x,,5
   |     ^ expected a whole number from 0 to 1000000000000
openb_pod_list_default.csv:3:7: error: `num_gpu` is empty
 3 | p,1,x,,5
   |       ^ expected a whole number from 0 to 1024
openb_pod_list_default.csv:4:1: error: the line has 3 fields, the first line names 5
 4 | q,1,2
   | ^^^^^
openb_pod_list_default.csv:5:1: error: `name` is empty
 5 | ,1,1,0,0
   | ^ every line needs a name"""


def test_a_missing_column_is_told_once(write):
    assert complaints(write("name,cpu_mili,memory_mib,num_gpu,gpu_milli\np,1,1,0,0\n")) == """\
openb_pod_list_default.csv:1:1: error: the list has no column `cpu_milli`
 1 | name,cpu_mili,memory_mib,num_gpu,gpu_milli
   | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ did you mean `cpu_mili`?"""


def test_an_empty_list_a_binary_one_and_a_missing_one_are_told(write, tmp_path):
    assert "openb_pod_list_default.csv:1:1: error: the list is empty" in complaints(write(""))
    assert complaints(write(b"name\xff\xfe")) == (
        "error: `openb_pod_list_default.csv` is not a text: byte 4 is not UTF-8\n  = a trace is a CSV file")
    with pytest.raises(PolicyError, match="no such file or directory"):
        load(tmp_path / "nothing.csv", tmp_path / "none.csv")


def test_a_file_of_another_kind_stops_after_a_hundred_faults(write):
    directory = write("name,cpu_milli,memory_mib,num_gpu,gpu_milli\n" + "x\n" * 5000)
    with pytest.raises(PolicyError) as caught:
        load(directory)
    assert len(caught.value.problems) == 100


TRACE = Trace(
    tuple(TraceNode(f"n{number}", 8000, 1024, 2, "T4") for number in range(5)),
    tuple(TracePod(f"p{number}", 100, 10, number % 3, 1000) for number in range(8)),
)


def test_the_workload_is_inflated_to_the_load_that_was_asked_for():
    workload = generate(TRACE, seed=42, tune=2.0)
    copies = [pod for pod in workload.pods if "-tuned-" in pod.name]
    assert sorted(workload.pods[: len(TRACE.pods)], key=lambda pod: pod.name) == list(TRACE.pods)
    assert [pod.name.rpartition("-")[2] for pod in copies] == [str(number) for number in range(len(copies))]
    assert 20_000 - 2000 < sum(pod.gpu_total for pod in workload.pods) < 20_000 + 2000


def test_the_draw_that_ends_the_inflation_is_made_also_after_a_copy_has_overshot_the_target():
    nodes = tuple(TraceNode(f"n{number}", 1000, 1000, 1, "T4") for number in range(10))
    pods = (TracePod("few", 100, 10, 1, 1000), TracePod("many", 100, 10, 7, 1000))
    overshot = set()
    for seed in range(20):
        random = GoRandom(seed)
        random.uint64()
        random.shuffle(list(pods))
        requested, ended = 8000, False
        while not ended:
            pod = pods[random.below(2)]
            ended = requested + pod.gpu_milli > 20_000
            requested += 0 if ended else pod.gpu_total
        for _ in range(10):
            random.uint64()
        prefixes = random.permutation(10)
        workload = generate(Trace(nodes, pods), seed=seed, tune=2.0)
        assert {node.name for node in workload.nodes} == {
            f"{prefix:04d}-n{number}" for number, prefix in enumerate(prefixes)
        }
        overshot.add(requested > 20_000)
    assert overshot == {True, False}


def test_the_workload_is_thinned_out_to_the_load_that_was_asked_for():
    workload = generate(TRACE, seed=42, tune=0.4)
    assert set(workload.pods) < set(TRACE.pods)
    assert sum(pod.gpu_total for pod in workload.pods) <= 4000


def test_nodes_get_the_prefix_of_a_permutation_and_are_sorted_by_it():
    nodes = generate(TRACE, seed=42).nodes
    assert [node.name[:5] for node in nodes] == ["0000-", "0001-", "0002-", "0003-", "0004-"]
    assert sorted(node.name[5:] for node in nodes) == ["n0", "n1", "n2", "n3", "n4"]
    assert nodes != generate(TRACE, seed=43).nodes


def test_the_same_seed_gives_the_same_workload():
    assert generate(TRACE, seed=1) == generate(TRACE, seed=1)


def test_pods_without_gpus_are_not_inflated_for_ever():
    trace = Trace(TRACE.nodes, (TracePod("p", 100, 10),))
    assert generate(trace, seed=42).pods == trace.pods


def test_objects_carry_the_request_as_the_simulator_writes_it():
    assert TracePod("p", 500, 64, 1, 250, ("T4", "P100")).object()["metadata"] == {
        "name": "p", "namespace": "default", "uid": "p",
        "annotations": {"alibabacloud.com/gpu-count": "1", "alibabacloud.com/gpu-milli": "250",
                        "alibabacloud.com/gpu-card-model": "T4|P100"},
    }
    assert TraceNode("n", 8000, 1024, 2, "T4").object()["status"]["allocatable"] == {
        "cpu": "8000m", "memory": "1024Mi", "pods": "1001",
        "alibabacloud.com/gpu-count": "2", "alibabacloud.com/gpu-milli": "1000",
    }
