"""A command with `--output json` that ends with an error prints it as one JSON object; the exit code stays."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from koordpolicy.engine.cli import hash as hashing
from koordpolicy.engine.cli.failures import failure
from koordpolicy.engine.cli.schema import outputs
from koordpolicy.engine.source import PolicyError, Problem, Severity, Source

from .conftest import Run

EXAMPLES: Final = Path(__file__).parents[3] / "examples"
REPLAYED: Final = EXAMPLES / "08-replay-a-trace"
TRACE: Final = ("--trace", str(REPLAYED / "pods.csv"), "--nodes", str(REPLAYED / "nodes.csv"))
POLICY: Final = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: p}
spec:
  filter:
  - {name: f, expression: "nodee.metadata.name == 'a'"}
"""
CLUSTER: Final = "CLUSTER"
POLICIES: Final = "POLICIES"
NO_SERVER: Final = ("--endpoints", "http://127.0.0.1:1")

LINES: dict[str, tuple[str, ...]] = {
    "audit": (POLICIES, "--cluster", CLUSTER),
    "descheduler": ("--once", "--dry-run", "--policies", POLICIES, "--cluster", CLUSTER),
    "diff": (POLICIES, POLICIES, "--cluster", CLUSTER),
    "dump": ("--policies", POLICIES, "--cluster", "kube", "--out", "/gone/dump.json"),
    "eval": ("node.metadata.name", "--cluster", CLUSTER, "--node", "a"),
    "explain": ("web", "--policies", POLICIES, "--cluster", CLUSTER),
    "hash": (POLICIES,),
    "lint": (POLICIES,),
    "plugins": ("--policies", POLICIES),
    "promote": NO_SERVER,
    "pull": ("127.0.0.1:1/p:v1", "--out", "/nowhere/out", "--insecure-unsigned"),
    "push": ("127.0.0.1:1/p:v1", POLICIES),
    "qos": ("--policies", POLICIES, "--replay", str(EXAMPLES / "09-qos-replay" / "metrics.yaml")),
    "reload": ("--wait-for", POLICIES, "--timeout", "1s", *NO_SERVER),
    "replay": (*TRACE, "--policies", POLICIES),
    "rollback": NO_SERVER,
    "scheduler": ("--dry-run", "--policies", POLICIES, "--cluster", CLUSTER),
    "simulate": (*TRACE, "--policies", POLICIES),
    "status": NO_SERVER,
    "sweep": ("params.a=1..2", "--policies", POLICIES, "--cluster", CLUSTER),
    "test": (POLICIES,),
    "top": ("--cluster", CLUSTER),
}
"""A command line of every command that prints JSON."""

OWN_REPORT: Final = {"lint", "test"}
"""Commands whose result is what is wrong with policies."""
WITHOUT_POLICIES: Final = {"eval", "hash", "promote", "pull", "reload", "rollback", "status", "top"}
"""Commands that compile no policies; an expression of `eval` is a text."""


def line(command: str, policies: object, cluster: object) -> Sequence[object]:
    """Return the command line with these policies and this cluster, printing JSON."""
    given = {POLICIES: policies, CLUSTER: cluster}
    return (command, *(given.get(word, word) for word in LINES[command]), "-o", "json")


def of(word: str) -> list[str]:
    return [command for command, words in LINES.items() if word in words]


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    path = tmp_path / "broken.yaml"
    path.write_text(POLICY)
    return path


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text("{kind: Node, metadata: {name: a}, status: {allocatable: {cpu: '4', memory: 8Gi, pods: '9'}}}\n"
                    "---\n{kind: Pod, metadata: {name: web, namespace: d}, spec: {containers: [{name: c}]}}\n")
    return path


def test_the_table_has_every_command_that_prints_json() -> None:
    assert sorted(LINES) == sorted(outputs())


@pytest.mark.parametrize("command", sorted(LINES.keys() - WITHOUT_POLICIES - OWN_REPORT))
def test_invalid_policies(run: Run, broken: Path, cluster: Path, command: str) -> None:
    done = run(*line(command, broken, cluster))
    place = {"file": str(broken), "line": 6, "column": 28, "endLine": 6, "endColumn": 33}
    assert (done.exit, done.json) == (3, {"errors": [{
        "code": "cel-name", "message": "no variable `nodee` at filter", **place, "fix": "did you mean `node`?",
    }]})
    assert done.err.startswith(f"{broken}:6:28: error: no variable `nodee` at filter\n")


def test_lint_prints_the_problems_of_policies_as_its_result(run: Run, broken: Path, cluster: Path) -> None:
    done = run(*line("lint", broken, cluster))
    assert (done.exit, done.json["errors"], done.json["problems"][0]["code"]) == (3, 1, "cel-name")


def test_a_unit_test_of_invalid_policies(run: Run, broken: Path, cluster: Path) -> None:
    suite = broken.with_name("p.test.yaml")
    suite.write_text("apiVersion: policy.koordinator.sh/v1alpha2\nkind: PolicyTest\nmetadata: {name: t}\n"
                     "spec:\n  fixtures: {nodes: {a: {}}, pods: {b: {}}}\n  policies: [broken.yaml]\n"
                     "  cases: [{name: c, pod: b, filter: {a: pass}}]\n")
    done = run(*line("test", suite, cluster))
    assert (done.exit, [each["code"] for each in done.json["errors"]]) == (3, ["cel-name"])


def test_an_invalid_expression(run: Run, cluster: Path) -> None:
    done = run("eval", "nodee.name", "--cluster", cluster, "--node", "a", "-o", "json")
    assert (done.exit, [(each["code"], each["column"]) for each in done.json["errors"]]) == (3, [("cel-name", 1)])


@pytest.mark.parametrize("command", of(POLICIES))
def test_a_path_of_policies_that_is_not_there(run: Run, tmp_path: Path, cluster: Path, command: str) -> None:
    done = run(*line(command, tmp_path / "none", cluster))
    (error,) = done.json["errors"]
    assert (done.exit, error["code"]) == (2, "usage")
    assert done.err == f"koord-policy: {error['message']}\n"


@pytest.mark.parametrize("command", of(CLUSTER))
@pytest.mark.parametrize(("dump", "code", "exit_code"), [
    ("{kind: [", "yaml-syntax", 3), ("{kind: Node, metadata: {name: a}", "yaml-syntax", 3), ("", "invalid", 3),
    (None, "usage", 2),
])
def test_a_broken_dump(
    run: Run, tmp_path: Path, command: str, dump: str | None, code: str, exit_code: int,
) -> None:
    good, path = tmp_path / "good.yaml", tmp_path / "dump.yaml"
    good.write_text(POLICY.replace("nodee", "node"))
    if dump is not None:
        path.write_text(dump)
    done = run(*line(command, good, path))
    assert (done.exit, {each["code"] for each in done.json["errors"]}) == (exit_code, {code})


@pytest.mark.parametrize("command", of(CLUSTER))
def test_a_kubeconfig_that_cannot_be_used(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str,
) -> None:
    good, config = tmp_path / "good.yaml", tmp_path / "config"
    good.write_text(POLICY.replace("nodee", "node"))
    config.write_text("{clusters: 7")
    monkeypatch.setenv("KUBECONFIG", str(config))
    done = run(*line(command, good, "kube:there"))
    assert (done.exit, [each["code"] for each in done.json["errors"]]) == (3, ["cluster"])


@pytest.mark.parametrize("command", LINES)
def test_a_command_line_that_is_wrong(run: Run, broken: Path, cluster: Path, command: str) -> None:
    done = run(*line(command, broken, cluster), "--nowhere")
    assert (done.exit, [each["code"] for each in done.json["errors"]]) == (2, ["usage"])
    assert done.json["errors"][0]["message"] in done.err


@pytest.mark.parametrize("command", LINES)
@pytest.mark.parametrize(("error", "wanted", "exit_code"), [
    (PermissionError(13, "Permission denied", "/f"), {"code": "file", "message": "Permission denied", "file": "/f"}, 1),
    (RuntimeError("a defect"), {"code": "internal", "message": "RuntimeError: a defect"}, None),
])
def test_what_nobody_expected(
    run: Run, broken: Path, cluster: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    command: str, error: Exception, wanted: dict[str, Any], exit_code: int | None,
) -> None:
    def fails(*_: object) -> int:
        raise error

    module = importlib.import_module(f"koordpolicy.engine.cli.{command}")
    monkeypatch.setattr(module, "run", fails)
    if exit_code is None:  # Python reports it, with the traceback
        with pytest.raises(type(error)):
            run(*line(command, broken, cluster))
        assert json.loads(capsys.readouterr().out) == {"errors": [wanted]}
    else:
        done = run(*line(command, broken, cluster))
        assert (done.exit, done.json) == (exit_code, {"errors": [wanted]})


def test_an_error_after_the_result_does_not_print_a_second_object(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("{}")
    before = hashing.run

    def fails(*arguments: Any) -> int:
        before(*arguments)
        raise PermissionError(13, "Permission denied", "/f")

    monkeypatch.setattr(hashing, "run", fails)
    done = run("hash", file, "-o", "json")
    assert (done.exit, done.err, sorted(done.json)) == (1, "koord-policy: /f: Permission denied\n",
                                                        ["files", "hash", "path"])


@pytest.mark.parametrize("command", LINES)
def test_without_json_nothing_is_on_standard_output(run: Run, broken: Path, cluster: Path, command: str) -> None:
    done = run(*line(command, broken, cluster)[:-2], "--nowhere")
    assert (done.exit, done.out) == (2, "")


def test_warnings_stand_beside_errors() -> None:
    source = Source("f.yaml", "a: 1\n")
    error = PolicyError([Problem("wrong", source.span(0)), Problem("odd", severity=Severity.WARNING, code="c")])
    place = {"file": "f.yaml", "line": 1, "column": 1, "endLine": 1, "endColumn": 2}
    assert failure(error) == {"errors": [{"code": "", "message": "wrong", **place}],
                              "warnings": [{"code": "c", "message": "odd"}]}
    assert failure(PolicyError([Problem("odd", severity=Severity.WARNING)])) == {
        "errors": [{"code": "", "message": "odd"}]}
