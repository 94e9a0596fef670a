from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from .conftest import Run, metric, node, pod, write_dump

HEAD = "apiVersion: policy.koordinator.sh/v1alpha2\nkind: SchedulerPlugin\nmetadata: {name: NAME}\nspec:\n"


def policy(name: str, expression: str, message: str = "no") -> str:
    return HEAD.replace(
        "NAME", name,
    ) + f"  filter:\n  - {{name: rule, expression: {json.dumps(expression)}, message: {json.dumps(message)}}}\n"


@pytest.fixture
def sets(tmp_path: Path) -> dict[str, Path]:
    """Return policies that let all nodes be, and such that keep pods off `cool`."""
    found = {}
    for name, expression in (("free", "true"), ("strict", "nodeInfo.name != 'cool'")):
        found[name] = tmp_path / name
        found[name].mkdir()
        (found[name] / "off.yaml").write_text(policy("off", expression, "not on cool"), encoding="utf-8")
    return found


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """Return two nodes, and pods that prefer `cool`."""
    there = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["cool"]}]}
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": there}]}
    amounts = {"web-1": ("1", "cool"), "web-2": ("2",), "web-3": ("3",), "web-4": ("64",)}
    return write_dump(tmp_path / "cluster.json", [
        node("cool"), node("hot"), metric("cool", "1"), metric("hot", "3"),
        *(pod(name, *given, affinity={"nodeAffinity": preferred}) for name, given in amounts.items()),
    ])


def counts(found: Any) -> dict[str, int]:
    return {name: count for name, count in found["difference"]["counts"].items() if count}


def test_the_json_holds_everything(run: Run, sets: dict[str, Path], cluster: Path):
    done = run("diff", sets["free"], sets["strict"], "--cluster", cluster, "--output", "json")
    found = done.json
    assert (done.exit, done.err, found["now"], found["seed"], found["budgets"]) == (
        0, "", "2026-01-02T12:00:00Z", 0, [],
    )
    assert counts(found) == {"moved": 1, "nowPending": 1, "nodesLost": 1, "nowMisfits": 1, "otherBestNode": 3}
    cause = {"plugin": "off", "rule": "rule", "reason": "not on cool"}
    assert found["difference"]["moved"] == [
        {"pod": "shop/web-2", "old": "cool", "new": "hot", "oldScore": 622, "newScore": None, "cause": cause},
    ]
    assert found["difference"]["added"] == {
        "pending": [{"pod": "shop/web-3", "node": "hot", "reasons": {"Insufficient cpu": 1, "not on cool": 1}}],
        "refused": [{**cause, "pairs": 3, "pods": ["shop/web-1", "shop/web-2", "shop/web-3"], "nodes": ["cool"]}],
        "misfits": [{"pod": "shop/web-1", "node": "cool", **cause}], "evicted": [], "useless": [], "suppressed": [],
        "faults": [],
    }
    assert found["difference"]["gone"] == {
        "pending": [], "refused": [], "misfits": [], "evicted": [], "useless": [], "suppressed": [], "faults": [],
    }
    assert [found["difference"][side]["pending"] for side in ("old", "new")] == [1, 2]


def test_the_tables_name_counts_and_examples(run: Run, sets: dict[str, Path], cluster: Path):
    done = run("diff", sets["free"], sets["strict"], "--cluster", cluster)
    assert done.exit == 0
    assert [" ".join(line.split()) for line in done.out.splitlines()[2:]] == [
        "old new change", "pods placed 2 1 -1", "pods pending 1 2 +1",
        "running pods whose node would refuse them 0 1 +1",
        "pods that would be evicted 0 0", "nodes whose best-effort pods are held back 0 0", "hot nodes 2 1 -1",
        "spread of requested cpu (% points) 0.00 12.50 +12.50", "spread of used cpu (% points) 25.00 35.62 +10.62",
        "kinds of failures 0 0", "",
        "pods that change node: 1", "pod old node new node because", "shop/web-2 cool hot off (rule): not on cool", "",
        "pods that find no node any more: 1", "pod was on why not under the other policies",
        "shop/web-3 hot 1 Insufficient cpu, 1 not on cool", "",
        "nodes that pods lose, by rule", "nodes pods rule which nodes which pods",
        "1 3 off (rule): not on cool cool shop/web-1, shop/web-2, shop/web-3", "",
        "running pods whose node would refuse them now: 1", "pods rule such as",
        "1 off (rule): not on cool shop/web-1 on cool", "",
        "scores by plugin, mean over nodes and kinds of pods (0 of 3 weighted sums differ, by +0.0 on average)",
        "plugin weight before weight now mean before mean now", "NodeAffinity 2 2 50.0 0.0",
        "NodeResourcesFit 1 1 66.5 73.3",
        "NodeResourcesBalancedAllocation 1 1 62.2 62.0", "",
        "kinds of pods with another best node", "pods such as old best new best", "1 shop/web-1 cool hot",
        "1 shop/web-2 cool hot", "1 shop/web-3 cool hot",
    ]


def test_markdown_is_tables_behind_summaries(run: Run, sets: dict[str, Path], cluster: Path):
    done = run("diff", sets["free"], sets["strict"], "--cluster", cluster, "--output", "markdown", "--max-moved", "0")
    lines = done.out.splitlines()
    assert done.exit == 6
    assert lines[:8] == [
        "## What the policies would change", "",
        f"{sets['free']} against {sets['strict']}: 2 nodes, 1 running pods, 3 to be placed, seed 0, "
        "at 2026-01-02T12:00:00Z".replace("_", "&#95;"),
        "", "**A budget does not hold.**", "", "| budget | of | at most | now |  |", "| --- | --- | --- | --- | --- |",
    ]
    assert "| pods that change node | 3 | 0 | 1 | EXCEEDED |" in lines
    assert "<summary>pods that change node: 1</summary>" in lines
    assert "| shop/web-2 | cool | hot | off (rule): not on cool |" in lines


def test_what_policies_and_clusters_say_is_never_markup(run: Run, tmp_path: Path):
    evil = "</details>| `x` [link](http://evil) <img src=x> @team #1\u202e\x1b[31m"
    (tmp_path / "old.yaml").write_text(policy("off", "true"), encoding="utf-8")
    (tmp_path / "new.yaml").write_text(policy("off", "nodeInfo.name != 'cool'", evil), encoding="utf-8")
    dump = write_dump(
        tmp_path / "c.json", [node("cool"), node("hot"), pod("web-1", "1", "cool"), pod("a|b<c>\n# x", "1")],
    )
    arguments = ("diff", tmp_path / "old.yaml", tmp_path / "new.yaml", "--cluster", dump)
    markdown, text = run(*arguments, "--output", "markdown").out, run(*arguments).out
    assert "shop/a&#124;b&#60;c&#62; &#35; x" in markdown
    escaped = "&#60;/details&#62;&#124; &#96;x&#96; &#91;link&#93;(http://evil) &#60;img src=x&#62; &#64;team &#35;1"
    assert escaped in markdown
    assert not {"\x1b", "\u202e"} & {*markdown, *text}
    assert all(line.count("<details>") + line.count("</details>") <= 1 for line in markdown.splitlines())
    assert markdown.count("<details>") == markdown.count("</details>")


@pytest.mark.parametrize(("budget", "code"), [
    (("--max-moved", "1"), 0), (("--max-moved", "50%"), 0), (("--max-moved", "1%"), 6), (("--max-pending", "0"), 6),
    (("--max-evicted", "0"), 0), (("--max-suppressed", "0"), 0), (("--max-misfits", "100%"), 0),
    (("--max-misfits", "0"), 6),
    (("--max-moved", "1", "--max-pending", "0"), 6),
])
def test_budgets_decide_the_exit_code(
    run: Run, sets: dict[str, Path], cluster: Path, budget: tuple[str, ...], code: int,
):
    done = run("diff", sets["free"], sets["strict"], "--cluster", cluster, "--output", "json", *budget)
    assert (done.exit, all(each["within"] for each in done.json["budgets"])) == (code, code == 0)


def test_a_budget_that_is_none_is_a_usage_error(run: Run, sets: dict[str, Path], cluster: Path):
    done = run("diff", sets["free"], sets["strict"], "--cluster", cluster, "--max-moved", "some")
    assert done.exit == 2
    assert "`some` is not a budget: write a whole number, or a share such as `1%`" in done.err


def test_sets_that_do_not_load_are_told_with_all_problems_and_nothing_is_compared(
    run: Run, sets: dict[str, Path], cluster: Path,
):
    (sets["free"] / "bad.yaml").write_text(policy("bad", "nod.x"), encoding="utf-8")
    (sets["strict"] / "bad.yaml").write_text("a: [", encoding="utf-8")
    done = run("diff", sets["free"], sets["strict"], "--cluster", cluster)
    assert (done.exit, done.out) == (3, "")
    assert "no variable `nod` at filter" in done.err
    assert f"{sets['strict']}/bad.yaml" in done.err


def test_the_same_policies_change_nothing(run: Run, sets: dict[str, Path], cluster: Path):
    done = run("diff", sets["free"], sets["free"], "--cluster", cluster, "--max-moved", "0")
    assert done.exit == 0
    assert "nothing changes" in done.out


def test_the_null_device_stands_for_no_policies(run: Run, sets: dict[str, Path], cluster: Path):
    done = run("diff", "/dev/null", sets["strict"], "--cluster", cluster, "--output", "json")
    assert counts(done.json)["moved"] == 1


def test_a_path_without_documents_is_an_error(run: Run, sets: dict[str, Path], cluster: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    for arguments, code, told in (
        (
            (tmp_path / "empty", sets["free"]), 3,
            f"there is no policy document in `{tmp_path}/empty`: /dev/null stands for no policies",
        ),
        ((tmp_path / "gone", sets["free"]), 2, f"there is no file or directory `{tmp_path}/gone`"),
    ):
        done = run("diff", *arguments, "--cluster", cluster)
        assert (done.exit, done.out) == (code, "")
        assert told in done.err


def test_something_to_compare_over_is_needed(run: Run, sets: dict[str, Path]):
    done = run("diff", sets["free"], sets["strict"])
    assert (done.exit, done.err) == (
        2, "koord-policy: there is nothing to compare over: name a dump with `--cluster`, or a trace with `--trace`\n",
    )


# -- traces

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,8000,16384,2,T4\nn2,8000,16384,2,T4\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np1,1000,1024,1,500\np2,1000,1024,0,0\nhuge,99000,1024,0,0\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    (tmp_path / "openb_node_list_gpu_node.csv").write_text(NODES)
    (tmp_path / "openb_pod_list_default.csv").write_text(PODS)
    return tmp_path


def test_the_pods_of_a_trace_are_placed_in_its_order(run: Run, trace: Path):
    (trace / "new.yaml").write_text(policy("off", "nodeInfo.name != 'n1'"), encoding="utf-8")
    done = run("diff", "/dev/null", trace / "new.yaml", "--trace", trace, "--output", "json")
    assert [(each["pod"], each["old"], each["new"]) for each in done.json["difference"]["moved"]] == [
        ("default/p1", "n1", "n2"), ("default/p2", "n1", "n2"),
    ]
    assert "now" not in done.json
    limited = run("diff", "/dev/null", trace / "new.yaml", "--trace", trace, "--limit", "1", "--output", "json")
    assert limited.json["difference"]["new"]["asked"] == 1


def test_a_trace_may_be_placed_onto_a_snapshot(run: Run, trace: Path, cluster: Path, sets: dict[str, Path]):
    done = run("diff", sets["free"], sets["strict"], "--trace", trace, "--cluster", cluster, "--output", "json")
    assert [(each["pod"], each["old"], each["new"]) for each in done.json["difference"]["moved"]] == [
        ("default/p2", "cool", "hot"),
    ]


# -- git

@pytest.fixture
def repository(tmp_path: Path, sets: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository whose first commit holds the free policies, and whose work tree holds the strict ones."""
    root = tmp_path / "repository"
    (root / "policies" / ".hidden").mkdir(parents=True)
    monkeypatch.chdir(root)

    def git(*words: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=n", "-c", "user.email=e@x", *words], cwd=root, check=True, capture_output=True,
        )

    git("init", "-q", "-b", "main")
    (root / "policies" / "off.yaml").write_text((sets["free"] / "off.yaml").read_text(), encoding="utf-8")
    (root / "policies" / "notes.txt").write_text("not a policy", encoding="utf-8")
    (root / "policies" / ".hidden" / "bad.yaml").write_text("a: [", encoding="utf-8")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    (root / "policies" / "off.yaml").write_text((sets["strict"] / "off.yaml").read_text(), encoding="utf-8")
    return root


def test_what_stood_in_a_commit_is_compared_with_the_work_tree(run: Run, repository: Path, cluster: Path):
    for old in ("main:policies", "git:main:policies", "HEAD:policies/off.yaml", "HEAD:./policies/"):
        done = run("diff", old, "policies", "--cluster", cluster, "--output", "json")
        assert (done.exit, done.err, counts(done.json)["moved"]) == (0, "", 1)


def test_a_path_is_relative_to_where_the_command_runs(
    run: Run, repository: Path, cluster: Path, monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(repository / "policies")
    done = run("diff", "main:off.yaml", ".", "--cluster", cluster, "--output", "json")
    assert counts(done.json)["moved"] == 1


def test_a_problem_of_a_commit_is_told_at_its_place_there(run: Run, repository: Path, cluster: Path):
    (repository / "policies" / "bad.yaml").write_text(policy("bad", "nod.x"), encoding="utf-8")
    subprocess.run(["git", "add", "."], cwd=repository, check=True)
    subprocess.run(
        ["git", "-c", "user.name=n", "-c", "user.email=e@x", "commit", "-q", "-m", "bad"], cwd=repository, check=True,
    )
    done = run("diff", "main:policies", "policies/off.yaml", "--cluster", cluster)
    assert (done.exit, done.out) == (3, "")
    assert done.err.startswith("main:policies/bad.yaml:6:31: error: no variable `nod` at filter")


@pytest.mark.parametrize(("old", "told"), [
    ("gone:policies", "git has no commit `gone`"), ("main:nothing", "the commit `main` holds nothing at `nothing`"),
    ("--upload-pack=x:y", "there is no option"), ("main:", "`main:` is neither a file nor REF:PATH of git"),
    ("git:main", "`git:main` is neither a file nor REF:PATH of git"),
    ("git:-x:policies", "`-x` is not the name of a commit"),
    ("main:../outside", "is outside repository"),
])
def test_what_git_does_not_have_is_a_usage_error(run: Run, repository: Path, cluster: Path, old: str, told: str):
    done = run("diff", old, "policies", "--cluster", cluster)
    assert (done.exit, done.out) == (2, "")
    assert told in done.err


def test_without_a_repository_git_says_so(
    run: Run, sets: dict[str, Path], cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
):
    (tmp_path / "alone").mkdir()
    monkeypatch.chdir(tmp_path / "alone")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    done = run("diff", "main:policies", sets["free"], "--cluster", cluster)
    assert (done.exit, done.out) == (2, "")
    assert done.err.startswith("koord-policy: git: not a git repository")


def test_a_link_in_a_commit_is_not_followed(run: Run, repository: Path, cluster: Path):
    (repository / "policies" / "link.yaml").symlink_to("/etc/passwd")
    subprocess.run(["git", "add", "."], cwd=repository, check=True)
    subprocess.run(
        ["git", "-c", "user.name=n", "-c", "user.email=e@x", "commit", "-q", "-m", "link"], cwd=repository, check=True,
    )
    done = run("diff", "main:policies", "policies/off.yaml", "--cluster", cluster)
    assert (done.exit, done.err) == (3, "error: cannot read `main:policies/link.yaml`: it is not a file\n")


def test_files_of_a_commit_are_read_whole_whatever_is_in_them(run: Run, repository: Path, cluster: Path):
    (repository / "policies" / "empty.yaml").write_bytes(b"")
    (repository / "policies" / "odd \u00e4\n.yaml").write_text(
        "# blob 12\n\n\n" + policy("odd", "true"), encoding="utf-8",
    )
    (repository / "policies" / "last.yaml").write_bytes(policy("last", "true").rstrip("\n").encode())
    (repository / "policies" / "bad.yaml").write_bytes(b"a: \x80")
    subprocess.run(["git", "add", "."], cwd=repository, check=True)
    subprocess.run(
        ["git", "-c", "user.name=n", "-c", "user.email=e@x", "commit", "-q", "-m", "odd"], cwd=repository, check=True,
    )
    done = run("diff", "main:policies", "policies", "--cluster", cluster)
    assert done.exit == 3
    assert "main:policies/bad.yaml:1:4: error: byte 0x80 at offset 3 is not UTF-8" in done.err
    (repository / "policies" / "bad.yaml").unlink()
    subprocess.run(["git", "add", "."], cwd=repository, check=True)
    subprocess.run(
        ["git", "-c", "user.name=n", "-c", "user.email=e@x", "commit", "-q", "-m", "even"], cwd=repository, check=True,
    )
    done = run("diff", "main:policies", "policies", "--cluster", cluster)
    assert (done.exit, "nothing changes" in done.out) == (0, True)


def test_a_pod_of_the_trace_that_is_in_the_cluster_already_is_refused(run: Run, trace: Path, sets: dict[str, Path]):
    taken = pod("p1", "1", "cool")
    taken["metadata"]["namespace"] = "default"
    dump = write_dump(trace / "taken.json", [node("cool"), taken])
    done = run("diff", sets["free"], sets["strict"], "--trace", trace, "--cluster", dump)
    assert (done.exit, done.out, done.err) == (
        3, "", "koord-policy: the pod `default/p1` of the trace is in the cluster already\n",
    )


def test_a_limit_takes_the_first_pods_by_priority(run: Run, sets: dict[str, Path], tmp_path: Path):
    dump = write_dump(tmp_path / "c.json", [node("cool"), node("hot"), pod("low", "1"), pod("high", "1", priority=10)])
    done = run("diff", sets["free"], sets["strict"], "--cluster", dump, "--limit", "1", "--output", "json")
    assert [each["pod"] for each in done.json["difference"]["moved"]] == ["shop/high"]


@pytest.mark.parametrize(("options", "told"), [
    (("--trace", "nowhere"), "there is no file `nowhere`"), (("--nodes", "nodes.csv"), "`--nodes` goes with `--trace`"),
    (("--trace", "."), "there is no list of nodes `openb_node_list_gpu_node.csv` beside the pods: name one"),
    (("--limit", "0"), "`0` is not a whole number above 0"),
    (("--hot", "200"), "`200` is not a percentage from 1 to 100"),
    (("--top", "-1"), "`-1` is not a whole number above 0"),
    (("--descheduler-config", "nowhere"), "there is no file `nowhere`"),
    (("--profile", "nope"), "no policy names the profile `nope`"),
    (("--max-moved",), "expected one argument"), (("--max-move", "1"), "did you mean `--max-moved`?"),
])
def test_other_options_that_are_wrong_are_usage_errors(
    run: Run, sets: dict[str, Path], cluster: Path, options: tuple[str, ...], told: str,
):
    done = run("diff", sets["free"], sets["strict"], "--cluster", cluster, *options)
    assert (done.exit, done.out) == (2, "")
    assert told in done.err


def test_the_configuration_of_the_descheduler_says_what_runs(run: Run, sets: dict[str, Path], tmp_path: Path):
    config = tmp_path / "descheduler.yaml"
    config.write_text(
        "apiVersion: descheduler/v1alpha2\nkind: DeschedulerConfiguration\nprofiles:\n- name: p\n", encoding="utf-8",
    )
    (sets["strict"] / "drain.yaml").write_text(
        "apiVersion: policy.koordinator.sh/v1alpha2\nkind: DeschedulerPlugin\nmetadata: {name: drain}\nspec:\n"
        "  type: Balance\n  proof: 'Off'\n"
        "  profiles: [q]\n  nodes: {source: usage.cpu > 0}\n  criteria: [{name: c, expression: 'true', message: m}]\n",
        encoding="utf-8",
    )
    owned = pod("web-1", "1", "cool")
    owned["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "web", "uid": "u"}]
    owned["spec"]["schedulerName"] = "koord-scheduler"
    dump = write_dump(tmp_path / "c.json", [node("cool"), node("hot"), metric("cool", "1"), metric("hot", "1"), owned])
    for name, evicted in (("p", 0), ("q", 1)):
        config.write_text(config.read_text(encoding="utf-8").replace("name: p", f"name: {name}"), encoding="utf-8")
        done = run(
            "diff", sets["free"], sets["strict"], "--cluster", dump, "--descheduler-config", config, "--output", "json",
        )
        assert (done.err, done.json["difference"]["counts"]["nowEvicted"]) == ("", evicted)


def test_what_the_proof_of_an_eviction_says_is_told(run: Run, sets: dict[str, Path], tmp_path: Path):
    there = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["cool"]}]}
    web = pod("web-1", "1", "cool", affinity={"nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": there}],
    }})
    web["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "web", "uid": "web"}]
    cluster = write_dump(tmp_path / "owned.json", [node("cool"), node("hot"), web])
    (sets["strict"] / "drain.yaml").write_text(HEAD.replace("NAME", "drain").replace("Scheduler", "Descheduler") + """\
  type: Balance
  nodes: {source: nodeInfo.name == 'cool'}
  criteria: [{name: any, expression: "true", message: off it}]
""", encoding="utf-8")
    (sets["strict"] / "off.yaml").unlink()
    found = run("diff", sets["free"], sets["strict"], "--cluster", cluster, "--output", "json").json
    assert found["difference"]["added"]["evicted"] == []
    (useless,) = found["difference"]["added"]["useless"]
    assert (useless["pod"], useless["plugin"], useless["proof"]["result"]) == ("shop/web-1", "drain", "loop")
    text = run("diff", sets["free"], sets["strict"], "--cluster", cluster).out
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "pods whose eviction would not help, so that they stay now: 1" in lines
    assert any(line.startswith("shop/web-1 cool drain any") and "drain (any) evicts from it" in line for line in lines)


@pytest.mark.parametrize("proof", ["Enforce", "Off"])
def test_evictions_without_a_known_scheduler_are_said_not_to_be_proved(run: Run, tmp_path: Path, proof: str):
    web = pod("web-1", "1", "cool")
    web["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "web", "uid": "web"}]
    cluster = write_dump(tmp_path / "owned.json", [node("cool"), node("hot"), web])
    drain = tmp_path / "drain.yaml"
    drain.write_text(HEAD.replace("NAME", "drain").replace("Scheduler", "Descheduler") + f"""\
  type: Balance
  nodes: {{source: nodeInfo.name == 'cool'}}
  criteria: [{{name: any, expression: "true", message: off it}}]
  proof: "{proof}"
""", encoding="utf-8")
    due = proof == "Enforce"
    hint = "no eviction was proved: name the profiles of the pods' scheduler with `--config`"
    for old, new, counts in (("/dev/null", drain, (0, 1)), (drain, drain, (1, 1))):
        command = ("diff", old, new, "--cluster", cluster)
        found = run(*command, "--output", "json").json
        assert [found["difference"][side]["unproved"] for side in ("old", "new")] == [due * each for each in counts]
        text = run(*command).out
        assert (hint in text, "evictions that should have been proved" in text) == (due, due)
        assert ("no eviction was proved" in run(*command, "--output", "markdown").out) == due
    config = tmp_path / "scheduler.yaml"
    config.write_text("{apiVersion: kubescheduler.config.k8s.io/v1, kind: KubeSchedulerConfiguration, "
                      "profiles: [{schedulerName: default-scheduler}]}")
    text = run("diff", "/dev/null", drain, "--cluster", cluster, "--config", config).out
    assert "proved" not in text.replace(str(tmp_path), "")
