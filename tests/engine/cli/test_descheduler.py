from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .conftest import Run, metric, node, pod, write_dump

DRAIN = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: DeschedulerPlugin
metadata: {name: drain-hot}
spec:
  type: Balance
  nodes:
    source: usage.cpu * 100 / allocatable.cpu > 80
    target: usage.cpu * 100 / allocatable.cpu < 45
    anomaly: {consecutive: 2, timeout: 5m}
  criteria:
  - {name: movable, expression: podInfo.name != 'stays'}
  sort: [{expression: podInfo.name}]
  until: usage.cpu * 100 / allocatable.cpu <= 80
"""


def owned(item: dict[str, Any], used: str) -> tuple[dict[str, Any], dict[str, Any]]:
    item["metadata"]["ownerReferences"] = [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": True},
    ]
    item["status"] = {"phase": "Running"}
    usage = {"namespace": "shop", "name": item["metadata"]["name"], "podUsage": {"resources": {"cpu": used}}}
    return item, usage


@pytest.fixture
def hot(tmp_path: Path) -> Path:
    pods = [owned(pod(name, "500m", "hot"), "600m") for name in ("first", "second", "stays")]
    measured = metric("hot", "3700m")
    measured["status"]["podsMetric"] = [usage for _, usage in pods]
    return write_dump(tmp_path / "hot.json", [
        node("cool"), node("hot"), metric("cool", "400m"), measured, *(item for item, _ in pods),
    ])


@pytest.fixture
def drain(tmp_path: Path) -> Path:
    path = tmp_path / "drain.yaml"
    path.write_text(DRAIN)
    return path


def test_what_would_be_evicted_and_what_stays_is_told(run: Run, hot: Path, drain: Path):
    done = run(
        "descheduler", "--once", "--dry-run", "--cluster", hot, "--policies", drain, "--cycles", "2", "-o", "json",
    )
    assert (done.exit, done.err) == (0, "")
    found = done.json
    assert [(each["pod"], each["plugin"], each["rule"]) for each in found["evicted"]] == [
        ("shop/first", "drain-hot", "movable"),
    ]
    assert [(each["pod"], each["stoppedBy"]) for each in found["kept"]] == [("shop/second", "drain-hot")]
    assert {each["node"]: each["role"] for each in found["nodeNotes"]} == {"cool": "target", "hot": "source"}


def test_a_node_that_waits_for_more_cycles_comes_with_the_option_that_runs_them(run: Run, hot: Path, drain: Path):
    command = ("descheduler", "--once", "--dry-run", "--cluster", hot, "--policies", drain)
    advice = "1 node waits for more cycles in a row: run more than 1 cycle over this cluster with `--cycles`\n"
    assert advice in run(*command).out
    assert "--cycles" not in run(*command, "--cycles", "2").out


def test_candidates_that_stay_for_one_reason_are_one_row_without_empty_columns(run: Run, hot: Path, tmp_path: Path):
    head = "apiVersion: policy.koordinator.sh/v1alpha2\nkind: DeschedulerPlugin\nmetadata: {name: NAME}\nspec:\n"
    policies = tmp_path / "policies.yaml"
    policies.write_text("---\n".join(
        head.replace("NAME", name) + f'  type: {kind}\n  criteria: [{{name: it, expression: "{expression}"}}]\n'
        for name, kind, expression in (
            ("every", "Deschedule", "true"), ("none", "EvictionFilter", "false"),
            ("failing", "Deschedule", "pod.metadata.labels['a'] == ''"),
        )
    ))
    lines = run("descheduler", "--once", "--dry-run", "--cluster", hot, "--policies", policies).out.splitlines()
    which = ["shop/first", "on", "hot,", "shop/second", "on", "hot,", "shop/stays", "on", "hot"]
    start = lines.index("candidates that stay") + 1
    assert [line.split() for line in lines[start:start + 4]] == [
        ["plugin", "stopped", "by", "pods", "which", "why"],
        ["every", "none", "(it)", "3", *which, "`it`", "is", "not", "true", "of", "it"],
        ["failing", "failing", "(it)", "3", *which, "`it`", "failed:", "no", "such", "key:", "labels"],
        [],
    ]


def test_one_look_is_no_anomaly(run: Run, hot: Path, drain: Path):
    done = run("descheduler", "--once", "--dry-run", "--cluster", hot, "--policies", drain)
    assert done.exit == 0
    assert "would be evicted\n" not in done.out
    assert "drain-hot  waiting" in done.out
    assert done.out.endswith("0 pods of 0 candidates would be evicted from 2 nodes\n")


def test_a_configuration_is_checked_strictly(run: Run, hot: Path, tmp_path: Path):
    path = tmp_path / "config.yaml"
    path.write_text(
        "apiVersion: descheduler/v1alpha2\nkind: DeschedulerConfiguration\nprofiles:\n- name: p\n  plugin:\n"
        "    balance: {}\n",
    )
    done = run("descheduler", "--once", "--dry-run", "--cluster", hot, "--config", path)
    assert (done.exit, done.out) == (3, "")
    assert f"{path}:5:3: error: " in done.err
    assert "`plugins`" in done.err


def test_a_cluster_of_one_node_is_left_alone(run: Run, tmp_path: Path, drain: Path):
    dump = write_dump(tmp_path / "dump.json", [node("only")])
    done = run("descheduler", "--once", "--dry-run", "--cluster", dump, "--policies", drain)
    assert done.exit == 5
    assert "the cycle ended early: the cluster size is 0 or 1" in done.out


def test_a_cycle_in_which_nothing_runs_says_so(run: Run, hot: Path):
    done = run("descheduler", "--once", "--dry-run", "--cluster", hot)
    assert (done.exit, done.err) == (
        0, "no plugin is active: name documents with `--policies`, or plugins in a `--config`\n",
    )


def test_of_a_dump_only_dry_cycles_are_offered(run: Run, hot: Path, tmp_path: Path):
    assert [run("descheduler", *arguments, "--cluster", hot).err for arguments in (
        ("--once",), ("--once", "--dry-run", "--interval", "5s"),
        ("--once", "--dry-run", "--config", tmp_path / "gone"),
        ("--once", "--dry-run", "--config", tmp_path),
    )] == [
        (
            "koord-policy: no pod of a dump can be evicted: say `--once --dry-run` to see what would be evicted, or "
            "name a live cluster with `--cluster kube[:CONTEXT]`\n"
        ),
        "koord-policy: `--interval` goes with a live cluster, without `--once --dry-run`\n",
        (f"koord-policy: there is no file `{tmp_path}/gone`: `--config` takes a DeschedulerConfiguration or a "
        "DeschedulerPolicy\n"),
        (f"koord-policy: `{tmp_path}` is a directory: `--config` takes a DeschedulerConfiguration or a "
        "DeschedulerPolicy, a file\n"),
    ]
    done = run("descheduler", "--once", "--dry-run", "--cluster", hot, "--cycles", "0")
    assert done.exit == 2
    assert "argument --cycles: `0` is not a whole number above 0" in done.err


@pytest.mark.parametrize(("arguments", "message"), [
    (("--output", "json"), "`--output`, `--now` and `--cycles` mean nothing to a descheduler of a live cluster"),
    (("--config", "gone.yaml"), "there is no file `gone.yaml`"),
    (("--policies", "gone"), "there is no file or directory `gone`"),
    (("--tls-cert", "a"), "`--tls-cert` and `--tls-key` go together"),
    (("--bind", "127.0.0.1:0", "--authorization-always-allow-paths", "/metrics"),
     "`--authorization-always-allow-paths` goes with `--tls-cert` or `--authentication-kubeconfig`"),
    (("--max-staleness", "60s"), "`--max-staleness` must be 75s at least"),
    (("--shards", "9"), "`9` is not a whole number from 1 to 8"),
    (("--shards", "2", "--once"), "`--shards` goes without `--once`"),
    (("--policies", "gone", "--shards", "2", "--leader-elect=false"), "`--shards` goes without `--leader-elect=false`"),
    (("--interval", "often"), "`often` is not a time such as 60s or 5m"),
    (("--check-permissions=maybe",), "`maybe` is not true or false"),
    (("--leader-elect=false", "--leader-elect-resource-name", "x"), "goes without `--leader-elect=false`"),
])
def test_wrong_options_of_a_live_descheduler_are_named(
    run: Run, arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
):
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    outcome = run("descheduler", "--cluster", "kube", "--compile-timeout", "0", *arguments)
    assert (outcome.exit, message in outcome.err) == (2, True), outcome.err


KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: nowhere
contexts: [{name: nowhere, context: {cluster: nowhere, user: nobody}}]
clusters: [{name: nowhere, cluster: {server: 'http://127.0.0.1:9'}}]
users: [{name: nobody, user: {token: secret}}]
"""


SCHEDULER = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles: [{schedulerName: default-scheduler}]
"""


@pytest.fixture
def proved(tmp_path: Path) -> list[str]:
    """The arguments of a cycle whose only candidate may run on its node only."""
    item, usage = owned(pod("pinned", "500m", "hot"), "3700m")
    item["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "hot"}
    measured = metric("hot", "3700m")
    measured["status"]["podsMetric"] = [usage]
    hot = node("hot")
    hot["metadata"]["labels"] = {"kubernetes.io/hostname": "hot"}
    (tmp_path / "drain.yaml").write_text(DRAIN.replace("    target: usage.cpu * 100 / allocatable.cpu < 45\n", ""))
    (tmp_path / "scheduler.yaml").write_text(SCHEDULER)
    dump = write_dump(tmp_path / "dump.json", [node("cool"), hot, metric("cool", "400m"), measured, item])
    return ["--cluster", str(dump), "--policies", str(tmp_path / "drain.yaml"), "--cycles", "2"]


def test_a_pod_that_would_come_back_stays_and_its_cool_down_is_remembered(
    run: Run, proved: list[str], tmp_path: Path,
):
    memory = tmp_path / "memory.json"
    means = ["--scheduler-config", tmp_path / "scheduler.yaml"]
    found = run("descheduler", "--once", "--dry-run", *proved, *means, "--memory", memory, "-o", "json").json
    assert found["evicted"] == []
    assert found["kept"][0]["proof"]["result"] == "loop"
    assert found["kept"][0]["proof"]["loop"]["refused"].keys() == {
        "NodeAffinity: node(s) didn't match Pod's node affinity/selector"}
    again = run("descheduler", "--once", "--dry-run", *proved, *means, "--memory", memory, "-o", "json").json
    assert again["kept"][0]["proof"]["result"] == "coolDown"
    explained = run("explain", "shop/pinned", "--eviction", *proved, *means)
    assert "drain-hot: chosen by movable, but its eviction does not help (proof: loop)" in explained.out
    assert "proof: shop/pinned would come back to hot: drain-hot (movable) evicts from it" in explained.out
    cooling = run("explain", "shop/pinned", "--eviction", *proved, "--memory", memory)
    assert "cool-down   proof: cool-down until " in cooling.out


def test_evictions_without_a_scheduler_are_said_not_to_be_proved(run: Run, proved: list[str], tmp_path: Path):
    done = run("descheduler", "--once", "--dry-run", *proved)
    assert done.out.splitlines()[-1] == (
        "no eviction was proved: name the profiles of the pods' scheduler with `--scheduler-config`, or "
        "SchedulerPlugins with `--policies`")
    assert run("descheduler", "--once", "--dry-run", *proved, "-o", "json").json["unproved"] == 1
    other = tmp_path / "other.yaml"
    other.write_text(SCHEDULER.replace("default-scheduler", "another"))
    done = run("descheduler", "--once", "--dry-run", *proved, "--scheduler-config", other)
    assert "shop/pinned would be evicted: not proved: no profile for the scheduler `default-scheduler`" in done.err
    assert "no eviction was proved" not in done.out


def test_what_a_live_descheduler_would_refuse_is_said_in_a_dry_run(run: Run, proved: list[str], tmp_path: Path):
    profile = """\
apiVersion: descheduler/v1alpha2
kind: DeschedulerConfiguration
profiles:
- name: ours
  PROOF
  plugins: {evict: {disabled: [{name: "*"}]}, balance: {enabled: [{name: RemoveDuplicates}]}}
"""
    config = tmp_path / "descheduler.yaml"
    config.write_text(profile.replace("PROOF", "proof: {}"))
    done = run("descheduler", "--once", "--dry-run", *proved, "--config", config)
    assert "warning: profile `ours`: no evict plugin is enabled: outside of a dry run it is refused\n" in done.err
    config.write_text(profile.replace("PROOF", "proof: {RemoveDuplicate: Warn}"))
    done = run("descheduler", "--once", "--dry-run", *proved, "--config", config)
    assert (done.exit, done.err.splitlines()) == (3, [
        f"{config}:5:11: error: profile `ours`: its `proof` names the plugin `RemoveDuplicate`, which does not exist",
        " 5 |   proof: {RemoveDuplicate: Warn}",
        "   |           ^^^^^^^^^^^^^^^ did you mean `RemoveDuplicates`?"])


@pytest.mark.parametrize("command", [["explain", "shop/pinned", "--eviction"], ["descheduler", "--once", "--dry-run"]])
def test_a_config_map_as_memory_goes_with_a_live_cluster(run: Run, proved: list[str], command: list[str]):
    done = run(*command, *proved, "--memory", "configmap:system/evictions")
    assert (done.exit, done.err) == (
        2, ("koord-policy: `--memory configmap:system/evictions`: write `configmap:NAMESPACE/NAME` of a live cluster "
           "(`--cluster kube`), or name a file\n"))


def test_a_damaged_memory_is_refused(run: Run, proved: list[str], tmp_path: Path):
    damaged = tmp_path / "memory.json"
    damaged.write_text("{}")
    done = run("descheduler", "--once", "--dry-run", *proved, "--memory", damaged)
    assert (done.exit, "is no memory of evictions: `format` must be" in done.err) == (3, True)
