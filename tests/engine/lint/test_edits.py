"""Fixes touch what they mend and nothing else."""

from __future__ import annotations

import pytest

from koordpolicy.engine.lint.edits import apply

from .conftest import HEAD, findings


def fixed(spec: str) -> str:
    text = HEAD.format(kind="SchedulerPlugin", name="example") + spec
    edits = [edit for each in findings(text) if each.found.fix is not None and (edit := each.found.fix()) is not None]
    changed = apply(edits)
    assert set(changed) <= {"policy.yaml"}
    return changed.get("policy.yaml", text).removeprefix(HEAD.format(kind="SchedulerPlugin", name="example"))


FILTER = "  filter:\n  - {name: fits, expression: requests.cpu <= variables.free}  # stays\n"


@pytest.mark.parametrize(("before", "after"), [
    (  # a whole item with its comment behind it; comments around it stay
        "  variables:\n  # free first\n  - {name: free, expression: allocatable.cpu - requested.cpu}\n"
        "  - name: gone   # why\n    expression: >-\n      requested.cpu\n      + 1\n  # end\n" + FILTER,
        "  variables:\n  # free first\n  - {name: free, expression: allocatable.cpu - requested.cpu}\n  # end\n"
        + FILTER,
    ),
    (
        "  variables: [{name: gone, expression: '1'}, {name: free, expression: allocatable.cpu - requested.cpu}]\n"
        + FILTER,
        "  variables: [{name: free, expression: allocatable.cpu - requested.cpu}]\n" + FILTER,
    ),
    (
        "  variables: [{name: free, expression: allocatable.cpu - requested.cpu}, {name: gone, expression: '1'}]\n"
        + FILTER,
        "  variables: [{name: free, expression: allocatable.cpu - requested.cpu}]\n" + FILTER,
    ),
    (  # the last one takes its key along
        "  params: {most: 5}\n  filter:\n  - {name: fits, expression: requests.cpu <= allocatable.cpu}\n",
        "  filter:\n  - {name: fits, expression: requests.cpu <= allocatable.cpu}\n",
    ),
    (
        ("  match: {pods: {labelSelector: {matchLabels: {koordinator.sh/qosclass: BE}}}}   # best effort\n"
        "  filter:\n  - {name: fits, expression: requests.cpu <= allocatable.cpu}\n"),
        ("  match: {pods: {labelSelector: {matchLabels: {koordinator.sh/qosClass: BE}}}}   # best effort\n"
        "  filter:\n  - {name: fits, expression: requests.cpu <= allocatable.cpu}\n"),
    ),
    (
        (
            "  filter:\n  - name: fits\n    expression: >-\n      !has(pod.spec.serviceAccount)\n"
            "      || nodeInfo.pods < 5\n"
        ),
        (
            "  filter:\n  - name: fits\n    expression: >-\n      !has(pod.spec.serviceAccountName)\n"
            "      || nodeInfo.pods < 5\n"
        ),
    ),
    (
        ("  filter:\n  # koord-policy: ignore KP010 because of old times\n  - name: fits\n"
        "    expression: nodeInfo.pods < 5  # koord-policy: ignore KP011 because of them too\n"),
        "  filter:\n  - name: fits\n    expression: nodeInfo.pods < 5\n",
    ),
])
def test_what_is_mended_is_all_that_changes(before: str, after: str):
    assert fixed(before) == after
    assert fixed(after) == after


@pytest.mark.parametrize(("before", "after"), [
    (r'"node.metadata.labels[\"pool\"] == \"a\""',
     r'''"node.metadata.?labels[?\"pool\"].orValue('') == \"a\""'''),
    (r'"node.metadata.labels[\u0022p\u00e9\u0022] == \"a\""',
     r'''"node.metadata.?labels[?\"pé\"].orValue('') == \"a\""'''),
    ("'node.metadata.labels[''pool''] == ''a'''", "'node.metadata.?labels[?''pool''].orValue(\"\") == ''a'''"),
    ("'node.metadata.labels[\"pool\"] == \"a\"'", "'node.metadata.?labels[?\"pool\"].orValue(\"\") == \"a\"'"),
    ("\"node.metadata.labels['pool'] == 'a'\"", "\"node.metadata.?labels[?'pool'].orValue('') == 'a'\""),
    (r'"nodeInfo.zone == \"a\" || node.metadata.labels.pool == \"\\\"\""',
     r'''"nodeInfo.zone == \"a\" || node.metadata.?labels.?pool.orValue('') == \"\\\"\""'''),
])
def test_a_fix_is_written_with_the_escapes_of_its_scalar(before: str, after: str):
    assert fixed(f"  filter:\n  - {{name: it, expression: {before}}}\n") \
        == f"  filter:\n  - {{name: it, expression: {after}}}\n"


@pytest.mark.parametrize("scalar", [
    '"node.metadata.labels[\\\n      \\"pool\\"] == \\"a\\""', "'node.metadata\n      .labels[''pool''] == ''a'''",
    '"node.metadata.labels[\\x22pool\\x22] == \\"a\\""',
])
def test_a_scalar_that_is_not_understood_is_left_alone(scalar: str):
    spec = f"  filter:\n  - {{name: it, expression: {scalar}}}\n"
    assert fixed(spec) == spec
