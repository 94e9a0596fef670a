"""Documents: loading, defaults, the internal form, ConfigMaps."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from koordpolicy.engine.documents import (
    Action,
    Document,
    Kind,
    LabelSelector,
    Metadata,
    Normalize,
    QoSSpec,
    SchedulerSpec,
    SuppressCPU,
    format_duration,
    load,
    load_paths,
    parse_duration,
    read_configmap,
    schema,
    validate_plain,
)
from koordpolicy.engine.framework.points import Code, Enforcement, FailurePolicy
from koordpolicy.engine.source import PolicyError, Source, render

HEAD = "apiVersion: policy.koordinator.sh/v1alpha2\nkind: SchedulerPlugin\nmetadata: {name: zone}\n"
ONE = HEAD + "spec:\n  filter:\n  - {name: a, expression: 'true'}\n"


def document(text: str) -> Document:
    loaded = load([Source("a.yaml", text)])
    assert loaded.problems == ()
    (found,) = loaded.documents
    return found


def test_what_is_left_out_has_its_default() -> None:
    found = document(ONE + "  score:\n  - {name: s, expression: '1'}\n")
    assert isinstance(found.spec, SchedulerSpec)
    assert found.metadata == Metadata("zone")
    assert (found.spec.failure_policy, found.spec.enforcement) == (FailurePolicy.FAIL, Enforcement.ENFORCE)
    assert (found.spec.weight, found.spec.order, found.spec.replaces, found.spec.profiles) == (1, 0, False, None)
    (check,), (item,) = found.spec.filter, found.spec.score
    assert (check.name, check.expression.text, check.reason, check.message) == ("a", "true", Code.UNSCHEDULABLE, "")
    assert (check.expression.field, str(check.expression.span)) == ("spec.filter[0].expression", "a.yaml:6:28")
    assert (item.weight, item.normalize) == (1, Normalize.IDENTITY)
    assert (found.kind, found.origin, found.faulty) == (Kind.SCHEDULER, "a.yaml:3", False)


def test_what_stands_under_a_name_that_may_not_be_is_read_all_the_same() -> None:
    loaded = load([Source("a.yaml", ONE.replace("zone", "Zone_1"))])
    (found,) = loaded.documents
    assert isinstance(found.spec, SchedulerSpec)
    assert (found.metadata.name, found.faulty, len(loaded.problems)) == ("Zone_1", True, 1)
    assert [each.expression.text for each in found.spec.filter] == ["true"]


def test_durations_become_nanoseconds() -> None:
    found = document(
        "apiVersion: policy.koordinator.sh/v1alpha2\nkind: QoSPlugin\nmetadata: {name: q}\nspec:\n  interval: 1m30s\n"
        "  thresholds: [{name: t, expression: 'true', for: 1.5s, holdFor: 2s}]\n"
        "  actions: [{name: a, suppressCPU: {target: '1'}}]\n",
    )
    assert isinstance(found.spec, QoSSpec)
    assert (found.spec.interval_ns, found.spec.window_ns) == (90_000_000_000, 10_000_000_000)
    (threshold,) = found.spec.thresholds
    assert (threshold.for_ns, threshold.hold_for_ns, threshold.cool_down_ns) == (1_500_000_000, 2_000_000_000, 0)
    (action,) = found.spec.actions
    assert isinstance(action, Action)
    assert isinstance(action.effect, SuppressCPU)
    assert found.plain["spec"]["actions"][0]["effect"] == {
        "suppressCPU": {"target": "1", "policy": "CPUSet", "deadBandPercent": None},
    }


@pytest.mark.parametrize(("text", "nanoseconds"), [
    ("0", 0), ("5s", 5 * 10**9), ("1h30m", 5400 * 10**9), ("1.5h", 5400 * 10**9), (".5s", 5 * 10**8), ("1us2ns", 1002),
    ("\u00b5s", None), ("5", None), ("", None), ("-1s", None), ("1d", None), ("5s ", None), ("9999999999h", None),
])
def test_durations_are_read_as_go_reads_them(text: str, nanoseconds: int | None) -> None:
    if nanoseconds is None:
        with pytest.raises(ValueError, match="duration"):
            parse_duration(text)
    else:
        assert parse_duration(text) == nanoseconds
        assert parse_duration(format_duration(nanoseconds)) == nanoseconds


def test_the_digest_follows_the_meaning_and_not_the_writing() -> None:
    same = HEAD + 'spec:\n  weight: 1   # the default\n  filter: [{expression: "true", name: a}]\n'
    assert document(ONE).digest == document(same).digest
    assert document(ONE).digest != document(ONE.replace("'true'", "'false'")).digest


def test_the_internal_form_is_complete_and_holds_against_its_schema() -> None:
    plain = json.loads(json.dumps(document(ONE).plain))
    assert list(validate_plain(plain, "SchedulerPlugin")) == []
    del plain["spec"]["order"]
    assert list(validate_plain(plain, "SchedulerPlugin")) == ["`spec`: 'order' is a required property"]


@pytest.mark.parametrize("version", ["v1alpha2", "internal"])
@pytest.mark.parametrize("kind", [kind.value for kind in Kind])
def test_every_kind_has_a_schema_of_both_versions(kind: str, version: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema(kind, version))


def test_what_a_schema_shows_as_an_example_holds_against_it() -> None:
    def examples(part: object) -> None:
        if isinstance(part, list):
            for each in part:
                examples(each)
        elif isinstance(part, dict):
            shown = part.get("examples")
            for example in shown if isinstance(shown, list) else ():
                jsonschema.Draft202012Validator(part).validate(example)
            for key, each in part.items():
                if key != "examples":
                    examples(each)

    for kind in Kind:
        examples(schema(kind.value))


def test_a_label_selector_selects_as_kubernetes_does() -> None:
    found = document(ONE.replace("spec:\n", (
        "spec:\n  match:\n    nodes:\n      labelSelector:\n        matchLabels: {a: x}\n        matchExpressions:\n"
        "        - {key: b, operator: In, values: [x, y]}\n        - {key: c, operator: NotIn, values: [x]}\n"
        "        - {key: d, operator: Exists}\n        - {key: e, operator: DoesNotExist}\n"
    )))
    assert isinstance(found.spec, SchedulerSpec)
    nodes = found.spec.match.nodes
    assert nodes is not None
    assert isinstance(nodes.label_selector, LabelSelector)
    good = {"a": "x", "b": "y", "d": ""}
    assert nodes.accepts("n", good)
    for change in ({"a": "y"}, {"b": "z"}, {"c": "x"}, {"e": ""}):
        assert not nodes.accepts("n", {**good, **change})
    assert not nodes.accepts("n", {"a": "x", "b": "x"})


def test_directories_are_walked_in_order_and_hidden_entries_left_out(tmp_path: Path) -> None:
    for name in ("b/two.yml", "a.yaml", "..data/x.yaml", ".hidden.yaml", "notes.txt", "c.json"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(ONE.replace("zone", path.stem) if path.suffix != ".json" else "{}")
    loaded = load_paths([tmp_path], source_name="mount")
    assert [(each.name, each.source_name) for each in loaded.documents] == [("a", "mount"), ("two", "mount")]
    assert [problem.message for problem in loaded.problems] == ["missing field `apiVersion`"]


def test_links_that_lead_back_up_and_pipes_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.yaml").write_text(ONE)
    (tmp_path / "deep" / "up").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe.yaml")
    loaded = load_paths([tmp_path])
    assert [each.name for each in loaded.documents] == ["zone"]
    assert [problem.message.replace(str(tmp_path), "DIR") for problem in loaded.problems] == [
        "cannot read `DIR/pipe.yaml`: it is not a file",
    ]


def test_one_bad_file_takes_nothing_from_the_others(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\x80\x81")
    (tmp_path / "deep.yaml").write_text("[" * 10_000)
    (tmp_path / "good.yaml").write_text(ONE)
    (tmp_path / "gone.yaml").symlink_to(tmp_path / "nowhere")
    loaded = load_paths([tmp_path, tmp_path / "missing"])
    assert [each.name for each in loaded.documents] == ["zone"]
    assert [problem.message.replace(str(tmp_path), "DIR") for problem in loaded.problems] == [
        "there is no file or directory `DIR/missing`",
        "byte 0x80 at offset 0 is not UTF-8",
        "nested deeper than 64 levels",
        "cannot read `DIR/gone.yaml`: no such file or directory",
    ]


MANIFEST = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: policies}
data:
  zone.yaml: |
    apiVersion: policy.koordinator.sh/v1alpha2
    kind: SchedulerPlugin
    metadata: {name: zone}
    spec:
      filter:
      - name: a
        expresion: "true"
  quoted.yaml: "kind: SchedulerPlugin\\napiVersion: policy.koordinator.sh/v1\\n"
"""


def test_documents_inside_a_configmap_are_placed_in_the_manifest() -> None:
    held = read_configmap(Source("map.yaml", MANIFEST))
    assert [key for key, _ in held] == ["zone.yaml", "quoted.yaml"]
    loaded = load(source for _, source in held)
    assert [(problem.message, str(problem.span)) for problem in loaded.problems] == [
        ("unknown field `expresion` in `spec.filter[0]`", "map.yaml:12:9"),
        ("`policy.koordinator.sh/v1` is not a version of policy documents", "map.yaml:13:52"),
    ]
    assert render(loaded.problems[:1]) == (
        "map.yaml:12:9: error: unknown field `expresion` in `spec.filter[0]`\n"
        ' 12 |         expresion: "true"\n'
        "    |         ^^^^^^^^^ did you mean `expression`?"
    )


@pytest.mark.parametrize(("kind", "text", "message", "help_"), [
    ("DeschedulerPlugin", "spec: {criteria: [{name: a, expression: 'true'}]}", "missing field `type` in `spec`",
     "write `type: Deschedule`, `type: Balance` or `type: EvictionFilter`"),
    ("SchedulerPlugin", "spec: {match: {pods: {namespaces: shop}}, filter: [{name: a, expression: 'true'}]}",
     "`spec.match.pods.namespaces` is the string `shop`, not a list", "write a list, such as `[shop]`"),
    ("SchedulerPlugin", "spec: {filter: {name: a, expression: 'true'}}",
     "`spec.filter` is a mapping, not a list", "write a list: each item begins with `- `"),
    ("SchedulerPlugin", "spec: {filter: [{name: a, expression: 'true'}]}\nscore: []",
     "unknown field `score`", "indent it under `spec`"),
    ("SchedulerPlugin", "spec: {filter: [{name: a, nam: b, expression: 'true'}]}",
     "unknown field `nam` in `spec.filter[0]`",
     "known: `expression`, `message`, `messageExpression`, `name`, `reason`"),
])  # fmt: skip
def test_a_problem_with_a_field_says_what_to_write_instead(kind: str, text: str, message: str, help_: str) -> None:
    loaded = load([Source("p.yaml", f"apiVersion: policy.koordinator.sh/v1alpha2\nkind: {kind}\n"
                                    f"metadata: {{name: p}}\n{text}\n")])
    assert [(problem.message, problem.help) for problem in loaded.problems] == [(message, help_)]


def test_a_configmap_must_be_one_that_the_api_server_takes() -> None:
    big = "x" * (1024 * 1024)
    text = f"kind: ConfigMap\nmetadata: {{name: m}}\ndata:\n  a/b.yaml: x\n  ..data: x\n  n: 1\n  big.yaml: {big}\n"
    with pytest.raises(PolicyError) as caught:
        read_configmap(Source("map.yaml", text))
    assert [(problem.message, str(problem.span)) for problem in caught.value.problems] == [
        ("the ConfigMap holds 1048602 bytes, but the API server takes 1048576", "map.yaml:2:18"),
        ("`a/b.yaml` is not a key that a ConfigMap may have", "map.yaml:4:3"),
        ("`..data` is not a key that a ConfigMap may have", "map.yaml:5:3"),
        ("the value of `n` is not a string", "map.yaml:6:3"),
    ]
    with pytest.raises(PolicyError, match="there is no ConfigMap in this manifest"):
        read_configmap(Source("map.yaml", "kind: Secret\n"))


def test_keys_of_a_configmap_that_the_engine_would_not_read_are_errors() -> None:
    text = "kind: ConfigMap\ndata:\n  a.txt: x\n  a.yaml: x\n  .b.yaml: x\n  c.json: x\n"
    with pytest.raises(PolicyError) as caught:
        read_configmap(Source("map.yaml", text))
    rule = "would not be read: policy files end in .yaml, .yml, .json, and do not begin with a dot"
    assert [(problem.message, str(problem.span)) for problem in caught.value.problems] == [
        (f"`a.txt` {rule}", "map.yaml:3:3"), (f"`.b.yaml` {rule}", "map.yaml:5:3"),
    ]


def test_whole_numbers_may_be_written_as_floats_and_are_whole_from_then_on() -> None:
    found = document(ONE.replace("spec:\n", "spec:\n  order: 3.0\n  weight: 2.0\n")).spec
    assert isinstance(found, SchedulerSpec)
    assert [(value, type(value)) for value in (found.order, found.weight)] == [(3, int), (2, int)]


def test_an_item_that_is_repeated_by_an_alias_has_its_name_twice() -> None:
    loaded = load([Source("a.yaml", HEAD + "spec:\n  filter:\n  - &a {name: a, expression: 'true'}\n  - *a\n")])
    assert [each.message for each in loaded.problems] == ["`spec.filter` has two items named `a`, the first in line 6"]


def test_a_qos_plugin_is_not_limited_to_profiles_that_there_are_not() -> None:
    text = (
        "apiVersion: policy.koordinator.sh/v1alpha2\nkind: QoSPlugin\nmetadata: {name: q}\nspec:\n  profiles: [gpu]\n"
        "  thresholds: [{name: t, expression: 'true'}]\n  actions: [{name: a, suppressCPU: {target: '1'}}]\n"
    )
    assert [f"{each.span}: {each.message}" for each in load([Source("a.yaml", text)]).problems] == [
        "a.yaml:5:3: `profiles` means nothing here: the QoS manager has none",
    ]


@pytest.mark.parametrize(("kind", "spec", "unknown"), [
    ("SchedulerPlugin", "filter: [{nam: a, expression: 'true'}]", "`nam` in `spec.filter[0]`"),
    ("SchedulerPlugin", "filter: [{name: a, expresion: 'true'}]", "`expresion` in `spec.filter[0]`"),
    ("SchedulerPlugin", "aggregates: [{name: a, ovr: nodes, function: count}]", "`ovr` in `spec.aggregates[0]`"),
    ("QoSPlugin", "thresholds: [{name: a, expression: 'true'}], actions: [{name: b, evct: {}}]",
     "`evct` in `spec.actions[0]`"),
    ("PolicyParams", "parms: {a: 1}", "`parms` in `spec`"),
    ("PolicyTest", "cases: [{nme: a, pod: {}, filter: pass}]", "`nme` in `spec.cases[0]`"),
])
def test_a_misspelt_required_field_is_one_problem(kind: str, spec: str, unknown: str) -> None:
    text = f"apiVersion: policy.koordinator.sh/v1alpha2\nkind: {kind}\nmetadata: {{name: a}}\nspec: {{{spec}}}\n"
    (problem,) = load([Source("a.yaml", text)]).problems
    assert (problem.message, problem.help[:12]) == (f"unknown field {unknown}", "did you mean")


@pytest.mark.parametrize(("kind", "spec", "unknown"), [
    ("QoSPlugin", "thresholds: [{name: a, expression: 'true', actions: []}]", "`actions` in `spec.thresholds[0]`"),
    ("PolicyTest", "fixtures: {nodes: {}, cases: []}", "`cases` in `spec.fixtures`"),
])
def test_a_required_field_further_down_is_one_problem(kind: str, spec: str, unknown: str) -> None:
    text = f"apiVersion: policy.koordinator.sh/v1alpha2\nkind: {kind}\nmetadata: {{name: a}}\nspec: {{{spec}}}\n"
    (problem,) = load([Source("a.yaml", text)]).problems
    assert (problem.message, problem.help) == (f"unknown field {unknown}", "move it to `spec`, which lacks it")


def test_every_pattern_of_the_schemas_has_words_for_people() -> None:
    def patterns(found: Any) -> Iterator[dict[str, Any]]:
        if isinstance(found, dict) and isinstance(found.get("pattern"), str):
            yield found
        for each in found.values() if isinstance(found, dict) else found if isinstance(found, list) else ():
            yield from patterns(each)

    files = sorted((Path(__file__).parents[3] / "schemas" / "v1alpha2").glob("*.json"))
    found = [(file.name, each) for file in files for each in patterns(json.loads(file.read_text(encoding="utf-8")))]
    assert {name for name, _ in found} >= {"definitions.json", "DeschedulerPlugin.json"}
    assert [(name, each["pattern"]) for name, each in found if "x-wanted" not in each] == []
