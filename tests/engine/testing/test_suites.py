"""Which policies a suite is about, and what must be refused."""

from __future__ import annotations

import pytest

from koordpolicy.engine.source import PolicyError
from koordpolicy.engine.testing.suites import load_suites

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
    ({"x.yaml": SUITE % ("x", "")}, "the suite `x` is about no policy"),
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
