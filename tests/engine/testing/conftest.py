"""Suites written as text, and what becomes of them."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine.testing.cases import run_case
from koordpolicy.engine.testing.suites import cases_of, load_suites

HOT = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: hot}
spec:
  match: {pods: {namespaces: [default]}}
  params: {limit: 65}
  matchConditions:
  - {name: labelled, expression: "!has(node.metadata.labels) || !('off' in node.metadata.labels)"}
  variables:
  - {name: cpu, expression: usage.cpu * 100 / allocatable.cpu}
  filter:
  - {name: below, expression: variables.cpu < params.limit, messageExpression: "'cpu at ' + string(variables.cpu)"}
  - {name: open, expression: "!nodeInfo.unschedulable"}
  score:
  - {name: coolest, expression: 100 - variables.cpu}
---
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: sized}
spec:
  preEnqueue:
  - {name: named, expression: "podInfo.name != 'bad'", message: a bad name}
  preFilter:
  - {name: small, expression: requests.cpu < 4000, message: too large}
"""

NODES = """\
plugin: hot
fixtures:
  nodes:
    cool: {cpu: 10, usage: {cpu: 1}}
    warm: {from: cool, usage: {cpu: 6}}
    hot: {from: cool, usage: {cpu: 9}}
    blind: {cpu: 10}
  pods:
    web: {cpu: 1}
    bad: {}
"""


@pytest.fixture
def load(tmp_path: Path):
    """Write a suite over the policy `HOT` (or others), and load it."""

    def loaded(cases: str, *, head: str = NODES, policies: str = HOT, name: str = "suite"):
        (tmp_path / f"{name}.yaml").write_text(policies)
        text = textwrap.indent(textwrap.dedent(head) + "cases:\n" + textwrap.dedent(cases), "  ")
        path = tmp_path / f"{name}.test.yaml"
        path.write_text(
            f"apiVersion: policy.koordinator.sh/v1alpha2\nkind: PolicyTest\nmetadata: {{name: {name}}}\nspec:\n{text}",
        )
        return load_suites([path], tuple(builtins()))

    return loaded


@pytest.fixture
def misses(load):
    """Run a suite; return per case what was expected and what came out instead, `about: expected | got`."""

    def run(cases: str, **more: str):
        return {
            case.name: [f"{each.about}: {each.expected} | {each.got}" for each in run_case(suite, case).mismatches]
            for suite, case in cases_of(load(cases, **more).suites)
        }

    return run
