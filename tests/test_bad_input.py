"""Bad input, end to end: what is told about it, and that nothing else is lost.

Each fault stands beside something that is good, or faulty in another way, which must be used, or told, all the same.
What single modules say about bad input is compared in their own tests, and about policy files in tests/cases.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine import cli

Run = Callable[..., tuple[int, str, str]]
HEAD = (
    "apiVersion: policy.koordinator.sh/v1alpha2\nkind: SchedulerPlugin\n"
    "metadata: {name: NAME, annotations: {policy.koordinator.sh/description: d}}\nspec:\n"
)


def policy(name: str, expression: str, *, point: str = "filter", variables: str = "") -> str:
    return HEAD.replace("NAME", name) + variables + f"  {point}:\n  - {{name: a, expression: {expression}}}\n"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in an empty directory; returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(arguments, builtins)
        return code, *capsys.readouterr()

    return command


# -- policy files --------------------------------------------------------------------------------------------------

OTHER = """\
other.yaml:6:27: error: no variable `nod` at filter
 6 |   - {name: a, expression: nod.x > 1}
   |                           ^^^ did you mean `node`?
"""
"""The output about the valid file beside the bad one."""


def nested(levels: int) -> bytes:
    return b"a: " + b"[" * levels + b"]" * levels


def bomb() -> bytes:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{c}: &{c} [{', '.join(['*' + p] * 9)}]" for p, c in zip("abcdefgh", "bcdefghi", strict=True)]
    return "\n".join(lines).encode()


def carets(place: int, help_: str = "", *, width: int = 1, line: int = 1) -> str:
    return f"{' ' * (len(str(line)) + 2)}| {' ' * place}{'^' * width}{' ' if help_ else ''}{help_}\n"


@pytest.mark.parametrize(("content", "told"), [
    pytest.param(
        policy("cut", "'true'")[:-8].encode(),
        "bad.yaml:6:25: error: did not find expected node content\n 6 |   - {name: a, expression: \n"
        + carets(24, "is a value missing there, or the file cut off?", line=6), id="truncated",
    ),
    pytest.param(
        b"kind: Scheduler\x00Plugin\n",
        "bad.yaml:1:16: error: the character U+0000 is not allowed in YAML\n 1 | kind: Scheduler\ufffdPlugin\n"
        + carets(15, "is this a text file?"), id="NUL",
    ),
    pytest.param(
        b"\x7fELF\x02\x00",
        "bad.yaml:1:1: error: the character U+007F is not allowed in YAML\n 1 | \ufffdELF\ufffd\ufffd\n"
        + carets(0, "is this a text file?"), id="binary",
    ),
    pytest.param(
        b"a: \x80", "bad.yaml:1:4: error: byte 0x80 at offset 3 is not UTF-8\n 1 | a: \ufffd\n"
        + carets(3, "save the file as UTF-8"), id="not UTF-8",
    ),
    pytest.param(
        policy("wide", "'true'").encode("utf-16"),
        "bad.yaml:1:1: error: the file is UTF-16\n 1 | \n" + carets(0, "save it as UTF-8"), id="UTF-16",
    ),
    pytest.param(
        bomb(),
        "bad.yaml:6:8: error: the aliases of this file stand for more than 100000 nodes\n"
        " 6 | f: &f [*e, *e, *e, *e, *e, *e, *e, *e, *e]\n" + carets(7, "write the values out", width=2, line=6),
        id="alias bomb",
    ),
    pytest.param(
        nested(10_000),
        f"bad.yaml:1:67: error: nested deeper than 64 levels\n 1 | {nested(10_000)[:160].decode()}\n"
        + carets(66, "flatten it"), id="10,000 levels",
    ),
    pytest.param(
        policy("m", "!!python/object/apply:os.system 'allocatable.cpu > 4000'").encode(),
        "bad.yaml:6:27: error: the tag `tag:yaml.org,2002:python/object/apply:os.system` is not supported\n"
        " 6 |   - {name: a, expression: !!python/object/apply:os.system 'allocatable.cpu > 4000'}\n"
        + carets(26, "remove it", width=len("!!python/object/apply:os.system 'allocatable.cpu > 4000'"), line=6),
        id="a tag that would run something",
    ),
    pytest.param(
        policy("m", "alocatable.cpu > 1").replace("\n", "\r\n").encode("utf-8-sig"),
        "bad.yaml:6:27: error: no variable `alocatable` at filter\n 6 |   - {name: a, expression: alocatable.cpu > 1}\n"
        + carets(26, "did you mean `allocatable`?", width=10, line=6), id="CRLF and a byte order mark",
    ),
    pytest.param(
        policy("m", "\"'\U0001f600e\u0301' == nod.metadata.name\"").encode(),
        "bad.yaml:6:37: error: no variable `nod` at filter\n"
        " 6 |   - {name: a, expression: \"'\U0001f600e\u0301' == nod.metadata.name\"}\n"
        + carets(36, "did you mean `node`?", width=3, line=6), id="columns count code points",
    ),
    pytest.param(
        policy("m", f'"{"true && " * 2000}nope"').encode(),
        "bad.yaml:6:16028: error: no variable `nope` at filter\n 6 | " + ("true && " * 20)[-80:] + 'nope"}\n'
        + carets(80, "did you mean `node`?", width=4, line=6), id="a line of 16,000 characters",
    ),
    pytest.param(
        policy("m", f"'{'x' * 100_001}'").encode(),
        "bad.yaml:6:15: error: `spec.filter[0].expression` has more than 100,000 characters\n"
        f" 6 |   - {{name: a, expression: '{'x' * 133}\n" + carets(14, "shorten it", width=10, line=6),
        id="an expression of 100,000 characters",
    ),
    pytest.param(
        policy("m", '"' + "usage.cpu > 1 || " * 5000 + 'true"').encode(),
        "bad.yaml:6:85028: error: too long: more than 20000 parts\n", id="5,000 alternatives",
    ),
    pytest.param(
        policy("m", '"allocatable.cpu + \'a\' > 1"').encode(),
        "bad.yaml:6:44: error: `+` does not take `int` and `string`\n"
        " 6 |   - {name: a, expression: \"allocatable.cpu + 'a' > 1\"}\n"
        + carets(43, "a string is not a number: `string(x)` and `int(x)` convert", line=6), id="a type error",
    ),
    pytest.param(
        policy("m", "node.spec.unschedulabl").encode(),
        "bad.yaml:6:36: error: no such field `unschedulabl` in `kubernetes.NodeSpec`\n"
        " 6 |   - {name: a, expression: node.spec.unschedulabl}\n"
        + carets(35, "did you mean `unschedulable`?", width=13, line=6), id="an unknown field",
    ),
    pytest.param(
        policy("m", "variables.x > 1", variables="  variables: [{name: x, expression: variables.y}, "
               "{name: y, expression: variables.x}]\n").encode(),
        "bad.yaml:5:37: error: variables read each other: `x` -> `y` -> `x`\n"
        " 5 |   variables: [{name: x, expression: variables.y}, {name: y, expression: variables.x}]\n"
        + carets(36, "break the circle", width=11, line=5), id="variables in a circle",
    ),
    pytest.param(
        policy("m", '"' + "".join(f"node.status.images.all({x}, " for x in "abcd") + 'a != b && c != d))))"').encode(),
        "bad.yaml:6:50: error: may cost 169,770,405, more than the limit of 100,000,000: `all` may run 50 times, "
        "inside it `all` 50 times, inside it `all` 50 times, inside it `all` 50 times\n", id="an endless loop",
    ),
    pytest.param(
        policy("m", "\"node.metadata.name.matches('((a{1000}){1000}){1000}')\"").encode(),
        "bad.yaml:6:55: error: error parsing regexp: invalid repetition size: {1000}: `((a{1000}){1000}){1000}`\n",
        id="a pattern that explodes",
    ),
])
def test_a_bad_file_is_told_with_its_place_and_the_others_are_still_checked(run: Run, content: bytes, told: str):
    Path("bad.yaml").write_bytes(content)
    Path("other.yaml").write_text(policy("other", "nod.x > 1"))
    code, out, err = run("lint", ".")
    assert (code, err) == (3, "")
    assert out.startswith(told) or told in out
    assert OTHER in out
    assert out.splitlines()[-1].startswith("2 errors, 0 warnings in ")


def test_a_file_of_100_mb_is_refused_without_being_read_whole(run: Run):
    with Path("bad.yaml").open("wb") as file:
        file.truncate(100 * 1024 * 1024)
    Path("other.yaml").write_text(policy("other", "nod.x > 1"))
    code, out, _ = run("lint", ".")
    assert code == 3
    assert out.startswith(
        "bad.yaml:1:1: error: `bad.yaml` is larger than 10485760 bytes\n 1 | \n   | ^ split it into several files\n",
    )
    assert OTHER in out


def test_what_stands_around_a_broken_document_of_a_file_is_still_checked(run: Run):
    good, left, right = policy("good", "'true'"), policy("left", "nod.x > 1"), policy("right", "nodes.x > 1")
    Path("all.yaml").write_text(
        "---\n".join([left, "a: 'never closed\n", good, "- a\n", "a: b: c\n", right, "# nothing\n"]),
    )
    code, out, _ = run("lint", "all.yaml")
    assert code == 3
    assert [line for line in out.splitlines() if ": error: " in line] == [
        "all.yaml:6:27: error: no variable `nod` at filter",
        "all.yaml:9:1: error: found unexpected document indicator, while scanning a quoted scalar that begins at 8:4",
        "all.yaml:17:1: error: a document must be a mapping",
        "all.yaml:19:5: error: mapping values are not allowed in this context",
        "all.yaml:26:27: error: no variable `nodes` at filter",
    ]


def test_a_name_in_two_files_is_told_once_with_both_places(run: Run):
    Path("a.yaml").write_text(policy("same", "allocatable.cpu > 4000"))
    Path("b.yaml").write_text(
        policy("good", "allocatable.cpu > 4000") + "---\n" + policy("same", "allocatable.cpu > 5000"),
    )
    assert run("lint", ".") == (3, (
        "b.yaml:10:18: error: the SchedulerPlugin `same` is declared twice, also at a.yaml:3\n"
        " 10 | metadata: {name: same, annotations: {policy.koordinator.sh/description: d}}\n"
        "    |                  ^^^^ rename one of them\n\n"
        "1 error, 0 warnings in 3 documents of 2 files\n"
    ), "")


@pytest.mark.parametrize("content", ["", "---\n", "---\n---\n", "# nothing\n", "\ufeff"])
def test_a_file_without_a_document_is_no_success(run: Run, content: str):
    Path("empty.yaml").write_text(content)
    assert run("lint", "empty.yaml") == (3, (
        "error: there is no document in `empty.yaml`\n  = name a file or a directory that holds some\n\n"
        "1 error, 0 warnings in 0 documents of 1 file\n"
    ), "")


def test_standard_input_is_bounded_too(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"#" * (11 * 1024 * 1024))))
    code, out, _ = run("lint", "-")
    assert code == 3
    assert out.startswith("<stdin>:1:1: error: `<stdin>` is larger than 10485760 bytes\n")


# -- decisions -----------------------------------------------------------------------------------------------------


def node(name: str, **more: Any) -> dict[str, Any]:
    status = {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}, "status": status, **more}


def pod(name: str, cpu: str = "1", *, metadata: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "shop", **(metadata or {})},
        "spec": {"containers": containers, **spec},
    }


def metric(cpu: str) -> dict[str, Any]:
    usage = {"nodeUsage": {"resources": {"cpu": cpu, "memory": "1Gi"}}}
    return {
        "apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric", "metadata": {"name": "good"},
        "status": {"updateTime": "2026-01-01T00:00:00Z", "nodeMetric": usage},
    }


def decide(run: Run, *items: dict[str, Any], policies: str = "") -> tuple[dict[str, str | None], str, Any]:
    """Return node by pod, what was told, and all decisions."""
    Path("dump.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    arguments = ["scheduler", "--cluster", "dump.json", "--output", "json"]
    if policies:
        Path("policies.yaml").write_text(policies)
        arguments += ["--policies", "policies.yaml"]
    code, out, err = run(*arguments)
    assert code == 0, err
    decisions = json.loads(out)["decisions"]
    return {each["pod"]: each["node"] for each in decisions}, err, decisions


@pytest.mark.parametrize(("faulty", "told"), [
    (node("bad", status={}), "Node `bad`: `status.allocatable` is missing"),
    ({"kind": "Node", "metadata": {"name": "bad"}}, "Node `bad`: `status` is missing"),
    (
        node("bad", status={"allocatable": {"cpu": "12Zi"}}),
        (
            "Node `bad`: `status.allocatable.cpu`: `12Zi` is not a quantity: write a number and a suffix, like `500m` "
            "or `1.5Gi`"
        ),
    ),
    (node("bad", status={"allocatable": {"cpu": "9" * 400}}),
     "Node `bad`: `status.allocatable.cpu`: the amount does not fit into 64 bits"),
    (node("bad", status={"allocatable": {"cpu": "4"}, "images": [{"names": 3}]}),
     "Node `bad`: `status.images[0].names` must be a list, not a number"),
    (node("bad", metadata={}), "Node: `metadata.name` is missing"),
    (node("bad", metadata={"name": "bad", "labels": {"zone": 1}}),
     "Node `bad`: `metadata.labels.zone` must be a string, not a number"),
    (node("bad", spec={"taints": "all"}), "Node `bad`: `spec.taints` must be a list, not a string"),
    (pod("bad", "12Zi"), ("Pod `shop/bad`: `spec.containers[0].resources.requests.cpu`: `12Zi` is not a quantity: "
                          "write a "
                         "number and a suffix, like `500m` or `1.5Gi`")),
    (
        pod("bad", containers=[]),
        "Pod `shop/bad`: `spec.containers` is missing or empty: a pod has at least one container",
    ),
    (pod("bad", containers=["main"]), "Pod `shop/bad`: `spec.containers[0]` must be an object, not a string"),
    (pod("bad", priority="high"), "Pod `shop/bad`: `spec.priority` must be a number, not a string"),
    (pod("bad", tolerations="all"), "Pod `shop/bad`: `spec.tolerations` must be a list, not a string"),
    (pod("bad", metadata={"creationTimestamp": 5}),
     "Pod `shop/bad`: `metadata.creationTimestamp` must be a string, not a number"),
])
def test_a_malformed_object_is_told_and_left_out_and_the_others_are_used(run: Run, faulty: dict[str, Any], told: str):
    decided = decide(run, node("good"), faulty, pod("web"))
    assert decided[:2] == ({"shop/web": "good"}, f"warning: {told}\n  = this object is left out\n")


@pytest.mark.parametrize(("cpu", "told"), [
    ("1", ""),
    ("12Zi", ("warning: NodeMetric `good`: `status.nodeMetric.nodeUsage.resources.cpu`: `12Zi` is not a quantity: "
              "write a "
             "number and a suffix, like `500m` or `1.5Gi`\n  = this object is left out\n")),
])
def test_a_metric_that_cannot_be_read_is_no_idle_node(run: Run, cpu: str, told: str):
    hot = policy("hot", "usage.cpu < 3000")
    node_by_pod, err, decisions = decide(run, node("good"), metric(cpu), pod("web"), policies=hot)
    assert (node_by_pod, err) == ({"shop/web": None if told else "good"}, told)
    assert [each["reason"] for each in decisions[0]["refusals"]] == (
        ["no metric of the node, or an expired one"] if told else []
    )


@pytest.mark.parametrize(("score", "told"), [
    ("101", "`a` is 101, outside 0..100"), ("-1", "`a` is -1, outside 0..100"),
    ("0.0 / 0.0", "the score is nan, not a number between -2^63 and 2^63"),
])
def test_a_score_that_is_none_counts_0_and_is_told_and_the_other_plugins_decide(run: Run, score: str, told: str):
    sound = policy("sound", "\"node.metadata.name == 'b' ? 9 : 1\"", point="score")
    both = policy("faulty", f'"{score}"', point="score") + "---\n" + sound
    node_by_pod, _, decisions = decide(run, node("a"), node("b"), pod("web"), policies=both)
    assert node_by_pod == {"shop/web": "b"}
    scores = {each["node"]: each["plugins"] for each in decisions[0]["scores"]}
    assert {name: (each["sound"], each["faulty"]) for name, each in scores.items()} == {"a": (1, 0), "b": (9, 0)}
    assert [(each["plugin"], each["rule"], each["message"], each["nodes"]) for each in decisions[0]["errors"]] == [
        ("faulty", "a", told, ["a", "b"]),
    ]


def test_a_score_of_another_type_is_refused_before_it_runs(run: Run):
    Path("p.yaml").write_text(policy("text", "\"'many'\"", point="score"))
    assert run("lint", "p.yaml")[:2] == (3, (
        "p.yaml:6:28: error: must be int or double, not string\n"
        " 6 |   - {name: a, expression: \"'many'\"}\n   |                            ^^^^^^\n\n"
        "1 error, 0 warnings in 1 document of 1 file\n"
    ))


def test_an_expression_that_fails_on_one_node_fails_there_only(run: Run):
    zone = policy("zone", "\"node.metadata.labels['zone'] == 'x'\"")
    labelled = node("b", metadata={"name": "b", "labels": {"zone": "x"}})
    node_by_pod, _, decisions = decide(run, node("a"), labelled, pod("web"), policies=zone)
    assert node_by_pod == {"shop/web": "b"}
    assert [(each["plugin"], each["code"], each["nodes"]) for each in decisions[0]["refusals"]] == [
        ("zone", "PolicyError", ["a"]),
    ]


def test_a_catastrophic_pattern_takes_no_longer_than_any_other(run: Run):
    # A backtracking matcher takes 2^40 steps: this test would never end.
    pattern = policy(
        "pattern", "\"!('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' + pod.metadata.name).matches('^(a+)+$')\"",
    )
    assert decide(run, node("good"), pod("web"), policies=pattern)[:2] == ({"shop/web": "good"}, "")
