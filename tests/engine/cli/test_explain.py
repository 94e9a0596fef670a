"""`explain` about evictions and QoS, and its usage errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from koordpolicy.engine.cli import explain

from .conftest import Run

ROOT = Path(__file__).parents[3]
RECORDING = ROOT / "examples" / "09-qos-replay" / "metrics.yaml"
CLUSTER = ROOT / "examples" / "cluster"


def test_a_pod_that_stays_is_explained(run: Run):
    done = run(
        "explain", "shop/web-16", "--eviction", "--cluster", CLUSTER, "--policies", ROOT / "policies" / "descheduler",
    )
    assert (done.exit, done.err) == (5, "")
    assert "  waits       drain-hot-nodes: general-03 is a source in 1 of 5 cycles in a row\n" in done.out
    assert "              cpuPercent 89 %, until at most 80 % (params.highPercent): over by 9 %\n" in done.out
    done = run("explain", "shop/web-16", "--eviction", "--cycles", 5, "--cluster", CLUSTER,
               "--policies", ROOT / "policies" / "descheduler", "--output", "json")
    assert (done.exit, done.json["evicted"], done.json["explanation"]["kind"]) == (0, True, "eviction")


def test_a_node_that_was_not_adjusted_is_explained(run: Run):
    arguments = ("explain", "--qos", "worker-1", "--replay", RECORDING, "--policies", ROOT / "policies" / "qos")
    done = run(*arguments, "--at", "10s")
    warning = "warning: NodeSLO `worker-1`: `spec` has no effect: no QoS plugin that runs reads it"
    assert (done.exit, done.err.splitlines()[0]) == (0, f"{RECORDING}:36:3: {warning}")
    assert done.out.startswith("worker-1 at 10s\n")
    assert "\nsuppress-best-effort did nothing at 10s\n  false       pressed\n" in done.out
    assert run(*arguments, "--output", "json").json["node"] == "worker-1"


@pytest.mark.parametrize(("arguments", "message"), [
    ((), "which pod? name it, or with `--qos` a node"),
    (("web-101",), "`--cluster` is missing: it says where the pod and the nodes are"),
    (("--qos", "n"), "`--qos` needs a recording: name it with `--replay`"),
    (
        ("--qos", "worker-2", "--replay", RECORDING),
        "there is no node `worker-2` in the recording: did you mean `worker-1`?",
    ),
    (
        ("--qos", "worker-1", "--replay", RECORDING, "--at", "5x"),
        "`--at`: `5x` is not a duration such as `30s`, `5m` or `1h30m`",
    ),
    (("--qos", "worker-1", "--replay", RECORDING, "--plugin", "BECPUSupress"),
     "there is no QoS plugin `BECPUSupress`: did you mean `BECPUSuppress`?"),
    (("web-101", "--qos", "worker-1"), "a pod means nothing to `--qos`"),
    (("--qos", "worker-1", "--now", "2026-01-01T00:00:00Z"), "`--now` means nothing to `--qos`"),
    (("--qos", "worker-1", "--best", "3"), "`--best` means nothing to `--qos`"),
    (
        ("web-101", "--cluster", CLUSTER, "--eviction", "--tie-break", "random"),
        "`--tie-break` means nothing to `--eviction`",
    ),
    (("web-101", "--cluster", CLUSTER, "--at", "5s"), "`--at` means nothing to a scheduling decision"),
    (("web-101", "--cluster", CLUSTER, "--eviction", "--node", "general-01"), "`--node` means nothing to `--eviction`"),
    (("web-101", "--cluster", CLUSTER, "--cycles", "3"), "`--cycles` means nothing to a scheduling decision"),
])
def test_what_cannot_be_asked_is_a_usage_error(run: Run, arguments: tuple[object, ...], message: str):
    done = run("explain", *arguments)
    assert (done.exit, done.out, done.err) == (2, "", f"koord-policy: {message}\n")


def test_policies_that_are_about_no_qos_are_not_passed_over_in_silence(run: Run):
    policies = ROOT / "policies" / "descheduler"
    done = run("explain", "--qos", "worker-1", "--replay", RECORDING, "--policies", policies)
    assert (done.exit, done.err) == (
        0, f"warning: there is no QoSPlugin in `{policies}`: only built-in plugins decide\n",
    )


def test_what_is_said_to_a_pipe_has_no_colour(run: Run):
    assert "\x1b" not in run("explain", "shop/web-101", "--cluster", CLUSTER, "--node", "gpu-01").out


def test_the_address_in_the_console_is_printed_if_there_is_one(run: Run, policies: Path, dump: Path):
    done = run("explain", "shop/web-2", "--cluster", dump, "--policies", policies, "--console-url", "https://c.example")
    assert done.out.endswith("\n\nin the console: https://c.example/#/pod?key=shop%2Fweb-2\n")
    done = run("explain", "shop/web-2", "--cluster", dump, "--policies", policies, "--console-url", "https://c.example",
               "--node", "hot", "--output", "json")
    assert json.loads(done.out)["console"] == "https://c.example/#/pod?key=shop%2Fweb-2&node=hot"
    assert run("explain", "shop/web-2", "--cluster", dump, "--console-url", "here").exit == 2


def test_an_explanation_that_takes_too_long_ends_and_names_the_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(explain, "_LONGEST_S", 0.0)
    policy = tmp_path / "slow.yaml"
    policy.write_text(
        "apiVersion: policy.koordinator.sh/v1alpha2\nkind: SchedulerPlugin\nmetadata: {name: slow}\nspec:\n"
        "  filter: [{name: long, expression: 'lists.range(3000).all(x, x + nodeInfo.pods >= 0)'}]\n")
    done = run("explain", "shop/web-101", "--cluster", CLUSTER, "--policies", policy)
    assert (done.exit, done.out) == (6, "")
    assert done.err.splitlines()[-1] == (
        f"koord-policy: the explanation took longer than 0 s, and an expression of `{policy}` was stopped: make the "
        "policies simpler, or name one node with `--node`")
