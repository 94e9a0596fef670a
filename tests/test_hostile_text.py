"""Every command with hostile names: nothing in them steers a terminal or is taken for a command by a CI system."""

from __future__ import annotations

import json
import logging
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.__main__ import builtins
from koordpolicy.engine import cli
from koordpolicy.engine.cli.logs import VisibleFormatter
from koordpolicy.engine.escaping import one_line, visible, visible_json

ROOT = Path(__file__).parents[1]
HOSTILE = (
    "\x1b[31mred\x08\r\n::error file=x::pwned\n  ::warning::y\n"
    "##[error]z ##vso[task]q\x9b2J\u202eabc\u200b\u2028\U000e0041\x1b]0;t\x07section_start:1:a\r\x1b[0K"
)
SPOKEN = HOSTILE.replace("\U000e0041", "")  # as YAML and CEL can write it with the escapes of JSON
FILE = HOSTILE  # a file may be called like that, as nothing in it is a slash


def hostile_places(text: str) -> list[str]:
    """Return the parts of printed text that steer a terminal or a CI system."""
    hidden = [hex(ord(character)) for character in text
              if character not in "\n\t" and unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"}]
    commands = re.findall(r"(?m)^\s*::.*|##\w*\[", text)
    return hidden + commands


def policy(kind: str, spec: dict[str, Any]) -> str:
    return json.dumps({"apiVersion": "policy.koordinator.sh/v1alpha2", "kind": kind, "metadata": {
        "name": "hostile", "annotations": {"policy.koordinator.sh/description": SPOKEN}}, "spec": spec})


def pod(name: str, on: str = "", *, status: dict[str, Any] | None = None) -> dict[str, Any]:
    containers = [
        {"name": HOSTILE, "image": HOSTILE, "resources": {"requests": {"cpu": "1", HOSTILE.replace("/", ""): "1"}}},
    ]
    return {
        "kind": "Pod",
        "metadata": {
            "name": name + HOSTILE, "namespace": HOSTILE, "uid": name, "labels": {HOSTILE: HOSTILE, "app": HOSTILE},
            "ownerReferences": [{"kind": HOSTILE, "name": HOSTILE, "uid": "u"}],
        },
        "spec": {"containers": containers, "priorityClassName": HOSTILE, **({"nodeName": on} if on else {})},
        "status": status or {"phase": "Running" if on else "Pending"},
    }


def node(name: str) -> dict[str, Any]:
    return {
        "kind": "Node",
        "metadata": {
            "name": name + HOSTILE, "labels": {"topology.kubernetes.io/zone": HOSTILE},
            "annotations": {HOSTILE: HOSTILE},
        },
        "spec": {"taints": [{"key": HOSTILE, "value": HOSTILE, "effect": "PreferNoSchedule"}]},
        "status": {
            "allocatable": {"cpu": "8", "memory": "8Gi", "pods": "10", HOSTILE: "5"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A directory in which every name that there is, is hostile."""
    (tmp_path / "old").mkdir()
    (tmp_path / "bad").mkdir()
    items = [
        node("a"), node("b"), pod("run", "a" + HOSTILE),
        pod("failed", "b" + HOSTILE, status={"phase": "Failed", "reason": HOSTILE}), pod("wait"),
        {"kind": "Pod", "metadata": {"name": "bad" + HOSTILE}, "spec": {"containers": HOSTILE}},
        {"kind": HOSTILE, "metadata": {"name": HOSTILE}},
    ]
    (tmp_path / "dump.json").write_text(json.dumps({"kind": "List", "items": items}))
    scheduling = policy("SchedulerPlugin", {
        "filter": [
            {
                "name": "no", "expression": "node.metadata.name.startsWith('b')",
                "messageExpression": json.dumps(SPOKEN) + " + node.metadata.name",
            },
            {
                "name": "fails",
                "expression": "node.metadata.labels[node.metadata.labels['topology.kubernetes.io/zone']] == ''",
            },
        ],
        "score": [{"name": "s", "expression": "1"}]})
    eviction = policy(
        "DeschedulerPlugin",
        {
            "type": "Deschedule",
            "criteria": [{"name": "all", "expression": "true", "messageExpression": json.dumps(SPOKEN)}],
        },
    )
    (tmp_path / "old" / f"{FILE}.yaml").write_text(scheduling)
    (tmp_path / "eviction.yaml").write_text(eviction)
    (tmp_path / "bad" / f"{FILE}.yaml").write_text(
        policy(
            "SchedulerPlugin", {SPOKEN: 1, "filter": [{"name": SPOKEN, "expression": f"nod == {json.dumps(SPOKEN)}"}]},
        ),
    )
    (tmp_path / "bad" / "syntax.yaml").write_text(f"kind: [{SPOKEN}")
    (tmp_path / "test.yaml").write_text(
        json.dumps(
            {
                "apiVersion": "policy.koordinator.sh/v1alpha2", "kind": "PolicyTest", "metadata": {"name": "t"},
                "spec": {SPOKEN: 1},
            },
        ),
    )
    (tmp_path / "pods.csv").write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time\n"
        "\x1b[31m::error::p,2000,1,0,0,,10,60\n\u202e##[x],99999999,1,0,0,,10,60\n",
    )
    (tmp_path / "nodes.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\n\x1b[31m::error::n,64000,262144,1,G2\n")
    (tmp_path / "metrics.yaml").write_text(
        (ROOT / "examples" / "09-qos-replay" / "metrics.yaml").read_text().replace("worker-1", json.dumps(SPOKEN)),
    )
    return tmp_path


COMMANDS = {
    "lint": [
        ["bad"], ["bad", "-o", "github"], ["bad", "-o", "junit"], ["bad", "-o", "sarif"], ["bad", "-o", "gitlab"],
        ["bad", "-o", "lsp-json"], ["bad", "-o", "json"], ["old"], [FILE],
    ],
    "scheduler": [
        ["--cluster", "dump.json", "--policies", "old"], ["--cluster", "dump.json", "--policies", "old", "-o", "json"],
        [
            "--cluster", "dump.json", "--policies", "old", "--trace", "--debug-filters", "--debug-scores", "2",
            "--debug-diagnosis",
        ],
        ["--cluster", FILE], ["--cluster", "dump.json", "--policies", "bad"],
        ["--cluster", "dump.json", "--profile", HOSTILE], [f"--{HOSTILE}"],
    ],
    "explain": [
        ["wait" + HOSTILE, "--cluster", "dump.json", "--policies", "old"],
        ["wait" + HOSTILE, "--cluster", "dump.json", "--policies", "old", "-o", "json"],
        ["wait" + HOSTILE, "--cluster", "dump.json", "--policies", "old", "--node", "a" + HOSTILE],
        [HOSTILE, "--cluster", "dump.json"],
        ["run" + HOSTILE, "--cluster", "dump.json", "--policies", "eviction.yaml", "--eviction"],
        ["wait" + HOSTILE, "--cluster", "dump.json", "--node", HOSTILE],
    ],
    "descheduler": [["--once", "--dry-run", "--cluster", "dump.json", "--policies", "eviction.yaml"],
                    ["--once", "--dry-run", "--cluster", "dump.json", "--policies", "eviction.yaml", "-o", "json"]],
    "qos": [
        ["--replay", "metrics.yaml", "--policies", str(ROOT / "policies" / "qos")],
        ["--replay", "metrics.yaml", "--policies", str(ROOT / "policies" / "qos"), "-o", "json"],
    ],
    "diff": [
        ["old", str(ROOT / "policies" / "scheduler"), "--cluster", "dump.json"],
        ["old", str(ROOT / "policies" / "scheduler"), "--cluster", "dump.json", "-o", "markdown"],
        ["old", str(ROOT / "policies" / "scheduler"), "--cluster", "dump.json", "-o", "json"],
    ],
    "audit": [["old", "--cluster", "dump.json"], ["old", "--cluster", "dump.json", "-o", "json"]],
    "eval": [
        ["node.metadata.name", "--cluster", "dump.json"],
        ["node.metadata.labels", "--cluster", "dump.json", "-o", "json"],
        ["node.metadata.name", "--cluster", "dump.json", "--node", "a" + HOSTILE],
        ["nod" + HOSTILE, "--cluster", "dump.json"], ["x", "--var", f"x={json.dumps(HOSTILE)}"],
        ["x", "--var", f"x={json.dumps({HOSTILE: HOSTILE})}", "--steps"],
    ],
    "simulate": [
        ["--trace", "pods.csv", "--nodes", "nodes.csv"], ["--trace", "pods.csv", "--nodes", "nodes.csv", "-o", "json"],
        ["--trace", FILE],
    ],
    "replay": [
        ["--trace", "pods.csv", "--nodes", "nodes.csv"], ["--trace", "pods.csv", "--nodes", "nodes.csv", "-o", "json"],
    ],
    "sweep": [
        ["--trace", "pods.csv", "--nodes", "nodes.csv", "--policies", "old"],
        ["--trace", "pods.csv", "--nodes", "nodes.csv", "--policies", FILE],
    ],
    "top": [["--cluster", "dump.json", "--once"], ["--cluster", "dump.json", "-o", "json"], ["--cluster", FILE],
            ["--endpoints", "http://127.0.0.1:1/" + HOSTILE, "--once"]],
    "console": [["--cluster", HOSTILE], ["--cluster", "dump.json", "--tokens", FILE],
                ["--cluster", "dump.json", "--policies", FILE], ["--cluster", "dump.json", "--bind", HOSTILE]],
    "lsp": [[HOSTILE], ["--timeout", HOSTILE]],
    "fmt": [["bad"], ["old", "--diff"], [FILE], [HOSTILE]],
    "test": [["test.yaml"], ["test.yaml", "-o", "json"], ["test.yaml", "-o", "junit"], ["test.yaml", "-o", "github"],
             ["test.yaml", "-o", "sarif"], [FILE]],
    "plugins": [["--policies", "old"], ["--policies", "old", "-o", "json"]],
    "hash": [["old"], [FILE], ["old", "-o", "json"], [f"oci:{HOSTILE}", "--insecure-unsigned"]],
    "push": [[HOSTILE, "old"], ["127.0.0.1:1/p:v", "eviction.yaml", "bad"], ["127.0.0.1:1/p:v", FILE],
             ["127.0.0.1:1/p:v", "old", "--sign-key", FILE], ["127.0.0.1:1/p:v", "old", "--annotation", HOSTILE]],
    "pull": [[HOSTILE, "--out", "out", "--insecure-unsigned"], ["127.0.0.1:1/p:v", "--out", FILE],
             ["127.0.0.1:1/p:v", "--out", "out", "--verify-key", FILE]],
    "new": [["scheduler", HOSTILE]],
    "agent": [
        ["--node-name", HOSTILE, "--policies", "bad", "--proc-root", "."],
        ["--node-name", HOSTILE, "--enable", HOSTILE],
        ["--node-name", "a", "--policies", FILE], ["--node-name", "a", "--feature-gates", HOSTILE + "=maybe"],
        ["--node-name", "a", "--cluster", HOSTILE],
    ],
    "manager": [["--cluster", HOSTILE], ["--cluster", "kube:" + HOSTILE]],
    "schema": [[HOSTILE]],
    "crd": [[HOSTILE]],
    "completion": [[HOSTILE], ["bash"]],
    "dump": [
        ["--cluster", "kube:" + HOSTILE, "--out", FILE], ["--cluster", HOSTILE, "--out", FILE],
    ],
    "status": [["--endpoints", "http://127.0.0.1:1/" + HOSTILE]],
    "reload": [
        ["--endpoints", "http://127.0.0.1:1/", "--wait", HOSTILE, "--timeout", "1ms"],
        ["--endpoints", "http://127.0.0.1:1/", "--wait-for", FILE],
    ],
    "promote": [
        ["--endpoints", "http://127.0.0.1:1/" + HOSTILE, "--timeout", "1ms"],
        ["--endpoints", "http://127.0.0.1:1/", "--token-file", FILE],
    ],
    "rollback": [
        ["--endpoints", "http://127.0.0.1:1/", "--to", HOSTILE],
        ["--endpoints", "http://127.0.0.1:1/", "--token-file", FILE],
    ],
}


def test_all_commands_are_tried():
    assert COMMANDS.keys() == cli.COMMANDS.keys()


@pytest.mark.parametrize(("command", "arguments"), [
    pytest.param(name, arguments, id=f"{name}-{number}")
    for name, all_ in COMMANDS.items()
    for number, arguments in enumerate(all_)])
def test_no_command_prints_what_steers_a_terminal_or_a_ci_system(command, arguments, world, capsys, monkeypatch):
    monkeypatch.chdir(world)
    try:
        code = cli.main([command, *arguments], builtins)
    except SystemExit as stop:
        code = stop.code
    assert (code == 3) == (
        arguments[0] == "bad" or "bad" in arguments[2:] or arguments[0].startswith(("test", "nod\x1b"))
        or any(each.startswith("kube") for each in arguments)  # there is none
    )
    out, err = capsys.readouterr()
    if arguments[-1] == "github":  # whose lines are commands, one a finding
        assert re.findall(r"(?m)^(?!::(?:error|warning|notice) file=[^:]*::).+$", out.rstrip("\n")) == []
        out = re.sub("(?m)^::", "", out)
    assert (hostile_places(out), hostile_places(err)) == ([], [])
    assert out + err


def test_json_holds_the_names_as_they_are(world, capsys, monkeypatch):
    monkeypatch.chdir(world)
    cli.main(["scheduler", "--cluster", "dump.json", "-o", "json"], builtins)
    assert [each["pod"] for each in json.loads(capsys.readouterr().out)["decisions"]] == [f"{HOSTILE}/wait{HOSTILE}"]


def test_logs_of_servers_hold_one_line_a_record():
    record = logging.LogRecord("koordpolicy", logging.WARNING, "", 0, "%s is left out", (HOSTILE,), None)
    line = VisibleFormatter("%(levelname)s %(name)s: %(message)s").format(record)
    assert (hostile_places(line), line.count("\n"), line.startswith("WARNING koordpolicy: ")) == ([], 0, True)


TEXTS = st.text(
    st.one_of(st.characters(), st.sampled_from("\x1b\r\n\x9b\u202e\u200b #:[]")), max_size=30,
) | st.sampled_from(["::error::x", " ::x", "##[x", "###vso[y", "#\u200b#[", "##section[x"])


@given(TEXTS)
def test_no_text_that_is_printed_holds_a_command(text):
    assert (hostile_places(visible(text)), hostile_places(one_line(text)), "\n" in one_line(text)) == ([], [], False)


@given(
    st.recursive(
        TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=5,
    ),
)
def test_json_that_is_printed_means_the_same(value):
    printed = visible_json(json.dumps(value, ensure_ascii=False, indent=2))
    assert json.loads(printed) == value
    assert hostile_places(printed) == []


@given(
    st.text(
        st.characters(categories=("L", "N", "P", "S", "Zs"), exclude_characters="\u115f\u1160\u3164\uffa0"),
        max_size=30,
    ).filter(lambda text: "::" not in text and "##" not in text),
)
def test_other_text_stays_as_it_is(text):
    assert visible(text) == one_line(text) == text
