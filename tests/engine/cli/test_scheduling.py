"""The commands `scheduler` and `explain` on the three nodes of the conftest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Run, metric, node, objects, pod, write_dump


def test_pending_pods_are_placed_by_priority_and_each_counts_for_the_next(run: Run, dump: Path, policies: Path):
    done = run("scheduler", "--cluster", dump, "--policies", policies)
    assert (done.exit, done.err) == (0, "")
    assert done.out == (
        "\nplaced\n"
        "pod         band           requests  node  score  passed\n"
        "shop/web-3  koord-prod LS  cpu 3     cool  -      1 of 3\n"
        "\nnot placed\n"
        "shop/web-2  koord-prod LS  cpu 2\n"
        "    2  NodeResourcesFit    Insufficient cpu: cool and 1 more\n"
        "    1  keep-off-hot-nodes  cpu at 75%: hot\n"
        "  0/3 nodes are available: 1 `variables.cpu < 65` is false, 2 Insufficient cpu. preemption: 0/3 nodes are "
        "available: 1 "
        "Preemption is not helpful for scheduling, 2 No preemption victims found for incoming pod.\n"
        "shop/web-4  koord-prod LS  cpu 64\n"
        "    3  NodeResourcesFit  Insufficient cpu: all\n"
        "  0/3 nodes are available: 3 Insufficient cpu. preemption: 0/3 nodes are available: 3 Preemption is not "
        "helpful for "
        "scheduling.\n"
        "\n1 of 3 pending pods placed on 3 nodes\n"
    )


def test_pods_with_the_same_fate_are_told_once(run: Run, tmp_path: Path):
    pods = [pod(f"big-{number}", "9") for number in range(3)]
    done = run("scheduler", "--cluster", write_dump(tmp_path / "dump.json", [node("only"), *pods]))
    assert done.out == (
        "\nnot placed\n"
        "shop/big-0 (and 2 like it, up to big-2)  koord-prod LS  cpu 9\n"
        "    1  NodeResourcesFit  Insufficient cpu: only\n"
        "  0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 Preemption is not "
        "helpful for "
        "scheduling.\n"
        "\n0 of 3 pending pods placed on 1 nodes\n"
    )


def test_decisions_are_plain_data(run: Run, dump: Path, policies: Path):
    done = run("scheduler", "--cluster", dump, "--policies", policies, "--output", "json").json
    assert (done["pending"], done["placed"]) == (3, 1)
    assert [(each["pod"], each["node"]) for each in done["decisions"]] == [
        ("shop/web-3", "cool"), ("shop/web-2", None), ("shop/web-4", None),
    ]
    assert done["decisions"][1]["refusals"][1] == {
        "plugin": "keep-off-hot-nodes", "rule": "below-watermark", "reason": "cpu at 75%", "code": "Unschedulable",
        "nodes": ["hot"], "count": 1, "values": {"variables.cpu": 75},
    }


def test_random_ties_follow_the_seed(run: Run, tmp_path: Path):
    items = [*(node(f"n{number}") for number in range(8)), pod("web", "1")]
    dump = write_dump(tmp_path / "dump.json", items)

    def placed(*arguments: str) -> str:
        return run("scheduler", "--cluster", dump, "-o", "json", *arguments).json["decisions"][0]["node"]

    assert placed() == "n0"
    drawn = [placed("--tie-break", "random", "--seed", str(seed)) for seed in range(8)]
    assert drawn == [placed("--tie-break", "random", "--seed", str(seed)) for seed in range(8)]
    assert len(set(drawn)) > 1


def test_malformed_objects_are_told_and_all_others_are_used(run: Run, tmp_path: Path):
    bare = node("bare")
    del bare["status"]
    faulty = pod("faulty", "12Zi")
    empty = {**pod("empty", "1"), "spec": {"containers": []}}
    dump = write_dump(tmp_path / "dump.json", [*objects(), bare, faulty, empty])
    done = run("scheduler", "--cluster", dump, "--output", "json")
    assert done.exit == 0
    assert [each["pod"] for each in done.json["decisions"]] == ["shop/web-3", "shop/web-2", "shop/web-4"]
    assert "warning: Pod `shop/faulty`: " in done.err
    assert "12Zi" in done.err
    assert "warning: Pod `shop/empty`: `spec.containers` is missing or empty" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("text", ["", "{", "\x00\x01", "[1, 2]", "kind: List\nitems: 3\n"])
def test_a_file_that_is_no_dump_is_invalid(run: Run, tmp_path: Path, text: str):
    path = tmp_path / "dump.yaml"
    path.write_text(text)
    done = run("scheduler", "--cluster", path)
    assert done.exit == 3
    assert str(path) in done.err
    assert "Traceback" not in done.err


def test_policies_in_place_of_a_dump_are_told_from_one(run: Run, policies: Path):
    done = run("scheduler", "--cluster", policies, "--policies", policies)
    assert (done.exit, done.out, done.err.splitlines()[-1]) == (
        3, "", (f"koord-policy: there is no usable node in `{policies}`: a dump is what "
                "`kubectl get nodes,pods,nodemetrics -A -o yaml` prints"))


def test_invalid_policies_decide_nothing(run: Run, dump: Path, policies: Path):
    (policies / "bad.yaml").write_text((policies / "hot.yaml").read_text().replace("usage.cpu", "usage.cpi"))
    done = run("scheduler", "--cluster", dump, "--policies", policies)
    assert (done.exit, done.out) == (3, "")
    assert f"{policies}/bad.yaml:8:34: error: no such field `cpi`" in done.err
    assert "is declared twice" in done.err


EMPTY = {
    "no file": {}, "no text": {"a.yaml": ""}, "comments": {"a.yaml": "# kind: SchedulerPlugin\n---\n"},
    "unit tests": {"a.test.yaml": (
        "{apiVersion: policy.koordinator.sh/v1alpha2, kind: PolicyTest, metadata: {name: s}, spec: {"
        "fixtures: {nodes: {n: {labels: {kind: SchedulerPlugin}}}}, cases: [{name: c, pod: {cpu: 1}, filter: pass}]}}"
    )},
}


@pytest.mark.parametrize("files", EMPTY.values(), ids=EMPTY)
@pytest.mark.parametrize("command", [
    ("scheduler", "--policies"), ("scheduler", "--extender", "--bind", "127.0.0.1:0", "--policies"),
    ("explain", "p", "--policies"), ("descheduler", "--once", "--dry-run", "--policies"), ("audit",),
    ("diff", "/dev/null"), ("plugins", "--policies"),
], ids=" ".join)
def test_a_path_that_holds_no_policy_ends_every_command_with_one_code(
    run: Run, dump: Path, tmp_path: Path, files: dict[str, str], command: tuple[str, ...],
):
    policies = tmp_path / "policies"
    policies.mkdir()
    for name, text in files.items():
        (policies / name).write_text(text)
    cluster = () if command[0] == "plugins" else ("--cluster", dump)
    done = run(*command, policies, *cluster)
    assert (done.exit, f"`{policies}`" in done.err) == (3, True), done.err


def test_missing_paths_are_usage_errors(run: Run, dump: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    assert [run("scheduler", *arguments).err for arguments in (
        ("--cluster", tmp_path / "gone"), ("--cluster", dump, "--policies", tmp_path / "gone"),
        ("--cluster", dump, "--policies", tmp_path / "empty"),
    )] == [
        f"koord-policy: there is no file or directory `{tmp_path}/gone`: `--cluster` takes a dump, or kube[:CONTEXT]\n",
        f"koord-policy: there is no file or directory `{tmp_path}/gone` to read policies from\n",
        f"koord-policy: there is no policy document in `{tmp_path}/empty`\n",
    ]


def test_policies_that_are_named_twice_are_a_usage_error(run: Run, dump: Path, policies: Path):
    assert [run("scheduler", "--cluster", dump, "--policies", one, "--policies", other).err for one, other in (
        (policies, policies), (policies, policies / "hot.yaml"), (policies / "hot.yaml", policies),
    )] == [
        f"koord-policy: `{policies}` is named twice: leave one out\n",
        *[f"koord-policy: `{policies}/hot.yaml` is in `{policies}`, which is named too: name one of them\n"] * 2,
    ]


def test_policies_of_other_frameworks_are_not_passed_over_in_silence(run: Run, dump: Path, tmp_path: Path):
    path = tmp_path / "evict.yaml"
    path.write_text("""\
apiVersion: policy.koordinator.sh/v1alpha2
kind: DeschedulerPlugin
metadata: {name: failed}
spec: {type: Deschedule, criteria: [{name: failed, expression: pod.status.phase == 'Failed'}]}
""")
    for command in (("scheduler",), ("explain", "shop/web-1")):
        done = run(*command, "--cluster", dump, "--policies", path)
        assert (done.exit, done.err) == (
            0, f"warning: there is no SchedulerPlugin in `{path}`: only built-in plugins decide\n",
        )
    done = run("descheduler", "--once", "--dry-run", "--cluster", dump, "--policies", path)
    assert (done.exit, done.err) == (0, "")


def test_a_decision_is_explained(run: Run, dump: Path, policies: Path):
    done = run("explain", "web-2", "--cluster", dump, "--policies", policies)
    assert (done.exit, done.err) == (0, "")
    head, scores, refused = done.out.split("\n\n")
    assert head == (
        "shop/web-2  koord-prod LS  requests cpu 2  profile default-scheduler\n"
        "shop/web-2 would run on cool: 1 of 3 nodes pass"
    )
    assert [line.split() for line in scores.splitlines() if "keep" in line or "cool" in line] == [
        ["plugin", "weight", "cool"], ["keep-off-hot-nodes", "1", "75"],
    ]
    assert refused == (
        "2 of 3 nodes refused\n"
        "    1  NodeResourcesFit (resources): Insufficient cpu\n"
        "       small: cpu 2 cores requested, 1 core of 1 core free: 1 core short\n"
        "    1  keep-off-hot-nodes (below-watermark): cpu at 75%\n"
        "       hot: cpu 75 %, must be below 65 %: over by 10 %\n"
    )


def test_a_pod_that_runs_is_decided_about_as_if_it_were_pending(run: Run, tmp_path: Path):
    items = [node("full", cpu="1"), pod("web", "1", "full")]
    dump = write_dump(tmp_path / "dump.json", items)
    done = run("explain", "shop/web", "--cluster", dump)
    assert done.exit == 0
    assert done.out.splitlines()[1:3] == [
        "it is on full; decided as if it were pending", "shop/web would run on full: 1 of 1 nodes pass",
    ]


def test_a_pod_that_fits_nowhere_is_not_possible(run: Run, dump: Path, policies: Path):
    done = run("explain", "web-4", "--cluster", dump, "--policies", policies)
    assert done.exit == 5
    assert "no node fits shop/web-4: 0 of 3 nodes pass" in done.out
    done = run("explain", "web-4", "--cluster", dump, "--policies", policies, "--output", "json")
    assert (done.exit, done.json["node"]) == (5, None)
    assert [(each["plugin"], each["nodes"]) for each in done.json["refusals"]] == [
        ("NodeResourcesFit", ["cool", "hot", "small"]), ("keep-off-hot-nodes", ["hot"]),
    ]


def test_one_node_is_explained_plugin_by_plugin(run: Run, dump: Path, policies: Path):
    done = run("explain", "web-2", "--cluster", dump, "--policies", policies, "--node", "hot")
    assert done.exit == 5
    head, _, rest = done.out.partition("  passed   NodeUnschedulable, ")
    assert head == (
        "hot is refused for shop/web-2\n"
        "shop/web-2  koord-prod LS  requests cpu 2  profile default-scheduler\n"
        "\n"
        "filters\n"
    )
    assert rest.partition("\n")[2] == (
        "  refused  keep-off-hot-nodes (below-watermark): cpu at 75%\n"
        "           cpu 75 %, must be below 65 %: over by 10 %\n"
        "             from allocatable.cpu 4 cores, usage.cpu 3 cores\n"
        "\n"
        "it would run there if\n"
        "  - node hot used 0.401 cores less cpu (2.599 instead of 3 cores)\n"
        "  - node hot had 0.616 cores more cpu (4.616 instead of 4 cores)\n"
    )


def test_a_node_that_passed_shows_its_scores(run: Run, tmp_path: Path, policies: Path):
    items = [node("a"), node("b"), metric("a", "1"), metric("b", "2"), pod("web", "1")]
    dump = write_dump(tmp_path / "dump.json", items)
    done = run("explain", "web", "--cluster", dump, "--policies", policies, "--node", "b")
    assert done.exit == 0
    assert done.out.startswith("b could take shop/web\n")
    lines = done.out.splitlines()
    assert ["keep-off-hot-nodes", "1", "50"] in [line.split() for line in lines]
    assert lines[-1].startswith("place 2 of 2: a has ")
    assert lines[-1].endswith(", 25 more")
    found = run("explain", "web", "--cluster", dump, "--policies", policies, "--node", "a", "-o", "json").json
    assert (found["passed"], found["chosen"], found["scores"]["keep-off-hot-nodes"]) == (True, True, 75)


def test_a_node_that_nobody_measured_is_refused_with_the_error(run: Run, tmp_path: Path, policies: Path):
    dump = write_dump(tmp_path / "dump.json", [node("silent"), pod("web", "1")])
    done = run("explain", "web", "--cluster", dump, "--policies", policies)
    assert done.exit == 5
    assert (
        "    1  keep-off-hot-nodes (below-watermark): PolicyError: no metric of the node, or an expired one\n"
        "       silent: it has no NodeMetric\n"
    ) in done.out
    assert done.out.endswith(
        "\nerrors\n"
        "  error    keep-off-hot-nodes (below-watermark) at filter: no metric of the node, or an expired one on "
        "silent\n",
    )


def test_a_name_that_several_pods_have_needs_its_namespace(run: Run, tmp_path: Path):
    other = pod("web", "1")
    other["metadata"] = {**other["metadata"], "namespace": "lab"}
    dump = write_dump(tmp_path / "dump.json", [node("n"), pod("web", "1"), other])
    done = run("explain", "web", "--cluster", dump)
    assert (done.exit, done.err) == (
        2, "koord-policy: several pods are called `web`: name one of `lab/web`, `shop/web`\n",
    )


def test_plugins_are_listed_with_their_state_and_origin(run: Run, policies: Path):
    done = run("plugins", "--policies", policies, "--framework", "scheduler", "--output", "json")
    found = {each["name"]: each for each in done.json["plugins"]}
    assert {key: found["keep-off-hot-nodes"][key] for key in ("points", "origin", "enabled", "description")} == {
        "points": ["filter", "score"], "origin": f"{policies}/hot.yaml:4", "enabled": True,
        "description": "Pods avoid hot nodes.",
    }
    assert (found["GpuClustering"]["enabled"], found["GpuClustering"]["origin"]) == (False, "built-in")
    lines = [line.split() for line in run("plugins", "--policies", policies).out.splitlines()]
    assert ["scheduler", "keep-off-hot-nodes", "filter", "score", "Enforce", f"{policies}/hot.yaml:4:",
            "Pods", "avoid", "hot", "nodes."] in lines
    assert run(
        "plugins", "--framework", "qos", "-o", "json",
    ).json["digest"] == run("plugins", "-o", "json").json["digest"]


def test_a_dump_may_be_a_directory_of_files(run: Run, tmp_path: Path):
    directory = tmp_path / "dump"
    directory.mkdir()
    for number, item in enumerate(objects()):
        (directory / f"{number}.json").write_text(json.dumps(item))
    assert run("scheduler", "--cluster", directory, "-o", "json").json["placed"] == 2


def test_a_pod_is_decided_about_in_the_profile_that_it_names(run: Run, dump: Path, policies: Path):
    path = policies / "hot.yaml"
    path.write_text(path.read_text().replace("spec:\n", "spec:\n  profiles: [careful]\n"))
    items = json.loads(dump.read_text())["items"]
    for each in items:
        each.setdefault("spec", {})["schedulerName"] = "careful"
    dump.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    found = run("explain", "web-4", "--cluster", dump, "--policies", policies, "-o", "json")
    assert (found.err, found.json["profile"], [each["plugin"] for each in found.json["refusals"]]) == (
        "", "careful", ["NodeResourcesFit", "keep-off-hot-nodes"])
    decisions = run("scheduler", "--cluster", dump, "--policies", policies, "-o", "json").json["decisions"]
    assert {each["profile"] for each in decisions} == {"careful"}


FAILING = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: zoned}
spec:
  filter: [{name: zone, expression: "node.metadata.labels['zone'] == 'a'"}]
"""


def test_an_expression_that_fails_is_told_apart_from_one_that_says_no(run: Run, dump: Path, tmp_path: Path):
    (tmp_path / "zoned.yaml").write_text(FAILING)
    arguments = ("--cluster", dump, "--policies", tmp_path / "zoned.yaml")
    out = run("explain", "web-4", *arguments).out
    assert out.endswith(
        "    3  zoned (zone): PolicyError: no such key: zone\n"
        "       all nodes\n"
        "\nit would run if\n"
        "  - the pod requested 60 cores less cpu (4 instead of 64 cores), and node hot had the label zone=a\n"
        "  - node hot had 60 cores more cpu (64 instead of 4 cores) and had the label zone=a\n"
        "\nerrors\n"
        "  error    zoned (zone) at filter: no such key: zone on cool, hot, small\n"
        "  if a field or key may be absent: `has(x.y)`, `'key' in x` or `x.?y.orValue(z)`\n",
    )
    assert "  error    zoned (zone): no such key: zone\n" in run("explain", "web-4", *arguments, "--node", "hot").out
    out = run("scheduler", *arguments).out
    assert out.count("no such key: zone on") == 1
    assert "  zoned (zone) at filter: no such key: zone on cool, hot, for 2 pods\n" in out


def test_what_is_short_is_told_in_peoples_units_and_of_which_node(run: Run, dump: Path):
    lines = run("explain", "web-4", "--cluster", dump).out.splitlines()
    start = lines.index("    3  NodeResourcesFit (resources): Insufficient cpu")
    assert lines[start:start + 3] == [
        "    3  NodeResourcesFit (resources): Insufficient cpu",
        "       all nodes",
        "       nearest is hot: cpu 64 cores requested, 4 cores of 4 cores free: 60 cores short",
    ]


def test_policies_of_another_profile_count_in_that_profile_only(run: Run, dump: Path, policies: Path):
    path = policies / "hot.yaml"
    path.write_text(path.read_text().replace("spec:\n", "spec:\n  profiles: [careful]\n"))

    def refusing(*arguments: str) -> list[str]:
        found = run("explain", "web-4", "--cluster", dump, "--policies", policies, "-o", "json", *arguments).json
        return [each["plugin"] for each in found["refusals"]]

    assert refusing() == ["NodeResourcesFit"]
    done = run("explain", "web-4", "--cluster", dump, "--policies", policies)
    assert done.err == (
        "warning: `keep-off-hot-nodes` does nothing: its `spec.profiles` names `careful`, "
        "and no pod here has that profile\n"
    )
    (policies / "other.yaml").write_text(
        path.read_text().replace("careful", "brave").replace("name: keep-off-hot-nodes", "name: keep-off"))
    done = run("explain", "web-4", "--cluster", dump, "--policies", policies)
    assert done.err == (
        "warning: 2 policies do nothing, as no pod here has one of their profiles (`brave`, `careful`): "
        "`keep-off`, `keep-off-hot-nodes`\n"
    )
    assert refusing("--profile", "careful") == ["NodeResourcesFit", "keep-off-hot-nodes"]
    done = run("explain", "web-4", "--cluster", dump, "--policies", policies, "--profile", "carefull")
    assert (done.exit, done.err) == (2, (
        "koord-policy: no policy names the profile `carefull`: did you mean `careful`?\n"
    ))


def test_a_log_of_a_plugin_that_there_is_not_is_refused(run: Run, dump: Path):
    done = run("scheduler", "--cluster", dump, "--log", "NodePort=debug")
    assert (done.exit, done.err) == (
        2, "koord-policy: `--log NodePort=...`: there is no scheduler plugin of that name: did you mean `NodePorts`?\n",
    )


def test_json_names_every_node_of_a_refusal_and_says_how_many_scores_it_leaves_out(run: Run, tmp_path: Path):
    nodes = [node(f"n{number}", cpu="1" if number < 7 else "9") for number in range(14)]
    found = run("scheduler", "--cluster", write_dump(tmp_path / "dump.yaml", [*nodes, pod("p", "2")]), "-o", "json")
    (decision,) = found.json["decisions"]
    assert [(each["nodes"], each["count"]) for each in decision["refusals"]] == [
        ([f"n{number}" for number in range(7)], 7),
    ]
    assert (decision["passed"], len(decision["scores"]), decision["scoresLeftOut"]) == (7, 5, 2)


def test_amounts_are_written_alike_by_all_commands(run: Run, tmp_path: Path):
    batch = {"kubernetes.io/batch-cpu": "2000", "kubernetes.io/batch-memory": "1536Mi"}
    small = pod("p", "500m")
    small["spec"]["containers"][0]["resources"] = {"requests": batch, "limits": batch}
    dump = write_dump(tmp_path / "dump.yaml", [node("a"), small])
    asked = "batch-cpu 2, batch-memory 1.5Gi"
    assert asked in run("scheduler", "--cluster", dump).out
    assert asked in run("explain", "p", "--cluster", dump).out


FULL = """\
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Node, metadata: {name: n}, status: {allocatable: {cpu: "1", memory: 1Gi, pods: "10"}}}
- {apiVersion: v1, kind: Pod, metadata: {name: victim, namespace: d}, spec: {priority: 0, nodeName: n, containers: [
    {name: a, resources: {requests: {cpu: "1"}}}]}, status: {phase: Running}}
- {apiVersion: v1, kind: Pod, metadata: {name: p, namespace: d}, spec: {priority: 1000, containers: [
    {name: a, resources: {requests: {cpu: "1"}}}]}, status: {phase: Pending}}
"""
BUDGET = """\
- {apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: b, namespace: d}, spec: {selector: {}}}
"""


@pytest.mark.parametrize("command", [("scheduler",), ("explain", "d/p")])
def test_victims_are_named_and_it_is_said_if_their_budgets_are_not_known(run: Run, tmp_path: Path, command):
    dump = tmp_path / "dump.yaml"
    lack = {"plugin": "preemption", "kinds": ["PodDisruptionBudget"]}
    for text, unknown in ((FULL, True), (FULL + BUDGET, False)):
        dump.write_text(text)
        done = run(*command, "--cluster", dump)
        assert "  room can be made on n by evicting d/victim\n" in done.out
        assert ("PodDisruptionBudget (read by `preemption`)" in done.err) is unknown
        assert (lack in run(*command, "--cluster", dump, "--output", "json").json.get("lacking", [])) is unknown
