"""The policies of a suite, and documents that must be refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from koordpolicy.engine.documents import load_paths
from koordpolicy.engine.source import PolicyError
from koordpolicy.engine.testing.cases import run_case
from koordpolicy.engine.testing.suites import LoadedSuites, cases_of, load_suites

SUITE = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: PolicyTest
metadata: {name: %s}
spec:
  %s
  cases:
  - {name: one, pod: {}, filter: pass}
"""
POLICY = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: %s}
spec:
  filter:
  - {name: rule, expression: nodeInfo.measured}
"""


def names(loaded):
    return {suite.name: sorted(each.name for each in suite.documents) for suite in loaded.suites}


def test_a_suite_is_about_the_policy_whose_name_it_has_those_in_its_file_or_those_that_it_names(tmp_path):
    (tmp_path / "a.yaml").write_text(POLICY % "a")
    (tmp_path / "a.test.yaml").write_text(SUITE % ("beside", ""))
    (tmp_path / "b.yaml").write_text(POLICY % "b" + "---\n" + SUITE % ("inside", ""))
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "c.yaml").write_text(POLICY % "c")
    (tmp_path / "d.yaml").write_text(SUITE % ("named", "policies: [a.yaml, more]"))
    (tmp_path / "e.yaml").write_text(POLICY % "e")
    loaded = load_suites([tmp_path])
    assert names(loaded) == {"beside": ["a"], "inside": ["b"], "named": ["a", "c"]}
    assert [each.name for each in loaded.untested] == ["e"]


@pytest.mark.parametrize(("files", "complaint"), [
    ({"x.yaml": SUITE % ("x", "")}, "the suite `x` tests no policy"),
    ({"x.yaml": SUITE % ("x", "policies: [y.yaml]")}, "the suite `x` names the policies `y.yaml`, which are not there"),
    ({"x.yaml": POLICY % "p" + "---\n" + SUITE % ("x", "") + "---\n" + SUITE % ("x", "")}, "two suites are named `x`"),
    ({"x.yaml": POLICY % "p" + "---\n" + SUITE % ("x", "plugn: p")}, "unknown field `plugn` in `spec`"),
    (
        {"x.yaml": (POLICY % "p").replace("measured", "measurd") + "---\n" + SUITE % ("x", "")},
        "no such field `measurd`",
    ),
    ({"x.yaml": POLICY % "p" + "---\n" + (SUITE % ("x", "")).replace("filter: pass", "filtr: pass")},
     "unknown field `filtr` in `spec.cases[0]`"),
    (
        {"x.yaml": POLICY % "p" + "---\n" + (SUITE % ("x", "")).replace(", filter: pass", "")},
        "the case `one` expects nothing",
    ),
    ({"x.yaml": POLICY % "p" + "---\n" + (SUITE % ("x", "")).replace(", pod: {}", "")},
     "the case `one` has no `pod` that `filter` could be about"),
])
def test_what_is_wrong_with_a_suite_is_said_at_its_place(tmp_path, files, complaint):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(PolicyError) as caught:
        load_suites([tmp_path])
    assert complaint in str(caught.value)


def test_a_policy_that_cannot_be_read_is_the_only_fault_of_the_suite_beside_it(tmp_path):
    (tmp_path / "x.test.yaml").write_text(SUITE % ("x", ""))
    (tmp_path / "x.yaml").write_text("a: b: c\n")
    with pytest.raises(PolicyError) as caught:
        load_suites([tmp_path])
    assert [each.code for each in caught.value.problems] == ["yaml-syntax"]


@pytest.mark.parametrize(("pods", "place", "message", "help_"), [
    ("{p: {from: p}}", "6:31", "the fixture `p` is based on itself: p -> p",
     "name another base, or write out what it has"),
    ("{p: {from: q}, q: {from: r}, r: {from: q}}", "6:45", "the fixture `q` is based on itself: q -> r -> q",
     "name another base, or write out what it has"),
    ("{p: {from: webb}, web: {}}", "6:31", "there is no fixture `webb` under `pods`", "did you mean `web`?"),
    (f"{{p0: {{}}, {', '.join(f'p{each}: {{from: p{each - 1}}}' for each in range(1, 53))}}}", "6:922",
     "the fixture `p51` has more than 50 bases, one on the other", "write out what it has"),
])
def test_a_fixture_with_an_impossible_base_is_reported_where_it_names_it(
    tmp_path: Path, pods: str, place: str, message: str, help_: str,
) -> None:
    suite = tmp_path / "x.test.yaml"
    suite.write_text((SUITE % ("x", f"fixtures: {{pods: {pods}}}")).replace("spec:\n", "spec:\n\n"))
    (problem,) = load_paths([suite]).problems
    assert (str(problem.span), problem.message, problem.help) == (f"{suite}:{place}", message, help_)


def test_a_missing_file_is_reported_where_the_suite_names_it(load: Any, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(SUITE % ("x", "policies: [a.yaml, y.yaml]"))
    (tmp_path / "a.yaml").write_text(POLICY % "a")
    with pytest.raises(PolicyError) as caught:
        load_suites([tmp_path])
    assert [str(each.span) for each in caught.value.problems] == [f"{tmp_path}/x.yaml:5:22"]
    loaded = load("- name: fixtures\n  pod: {}\n  filter: pass\n", head="plugin: hot\nfixtures:\n  files:\n  - gone\n")
    assert places_of_mismatches(loaded) == {"fixtures": [(8, "there is no file or directory `gone` beside the suite")]}
    loaded = load("- name: refused\n  expectInvalid:\n    file: gone\n    problems: [a]\n", head="plugin: hot\n")
    assert places_of_mismatches(loaded) == {"refused": [(9, "there is no file `gone` beside the suite")]}


def places_of_mismatches(loaded: LoadedSuites) -> dict[str, list[tuple[int, str]]]:
    return {case.name: [(each.span.place[1], each.got) for each in run_case(suite, case).mismatches]
            for suite, case in cases_of(loaded.suites)}


def test_documents_that_must_be_refused_are_and_for_these_reasons(misses):
    assert misses("""\
        - name: refused
          expectInvalid:
            document: |
              apiVersion: policy.koordinator.sh/v1alpha2
              kind: SchedulerPlugin
              metadata: {name: bad}
              spec:
                filter:
                - {name: rule, expression: nod.metadata.name == 1}
            problems: [{message: no variable `nod`, code: cel-name, line: 6}]
        - name: another reason
          expectInvalid:
            document: |
              apiVersion: policy.koordinator.sh/v1alpha2
              kind: SchedulerPlugin
              metadata: {name: bad}
              spec: {}
            problems: [unknown field]
        - name: valid
          expectInvalid:
            document: |
              apiVersion: policy.koordinator.sh/v1alpha2
              kind: PolicyParams
              metadata: {name: good}
              spec: {params: {a: 1}}
            problems: [does nothing]
        - name: a name that is taken
          expectInvalid:
            document: |
              apiVersion: policy.koordinator.sh/v1alpha2
              kind: SchedulerPlugin
              metadata: {name: hot}
              spec: {filter: [{name: rule, expression: "true"}]}
            problems: [is declared twice]
        - {name: no file, expectInvalid: {file: nowhere.yaml, problems: [x]}}
    """) == {
        "refused": [],
        "another reason": [
            "the document: it is refused for `unknown field` | line 4: the plugin does nothing",
            "the document: no other problem | line 4: the plugin does nothing",
        ],
        "valid": ["the document: it is refused for `does nothing` | it is valid"],
        "a name that is taken": [],
        "no file": ["the case: a case that can run | there is no file `nowhere.yaml` beside the suite"],
    }
