"""Loops between descheduling and scheduling documents, found from the intervals of their conditions."""

from __future__ import annotations

import pytest

from .conftest import findings


def drain(source: str, more: str = "") -> str:
    return f"""\
apiVersion: policy.koordinator.sh/v1alpha2
kind: DeschedulerPlugin
metadata: {{name: drain, annotations: {{policy.koordinator.sh/description: It drains.}}}}
spec:
  type: Balance
  nodes: {{source: "{source}"}}
{more}"""


def schedule(score: str, *filters: str, name: str = "pack", more: str = "") -> str:
    items = "".join(f'  - {{name: f{number}, expression: "{each}", message: no}}\n' for number, each in
                    enumerate(filters))
    return f"""\
---
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {{name: {name}, annotations: {{policy.koordinator.sh/description: It schedules.}}}}
spec:
{f"  filter:{chr(10)}{items}" if filters else ""}{f'  score: [{{name: s, expression: "{score}"}}]' if score else ""}
{more}"""


def share(amount: str, resource: str = "cpu") -> str:
    return f"{amount}.{resource} * 100 / allocatable.{resource}"


FULLEST = f"math.least(100, {share('usage')})"
EMPTIEST = f"math.greatest(0, 100 - {share('usage')})"
MOST_REQUESTED = f"math.least(100, {share('requested')})"
LEAST_REQUESTED = f"math.greatest(0, 100 - {share('requested')})"


def loops(*documents: str, configuration: str = "") -> list[str]:
    return [each.found.message for each in findings("".join(documents), configuration) if each.rule.id == "KP043"]


def test_a_score_that_prefers_what_is_drained_and_admitted_is_a_loop():
    assert loops(drain(f"{share('usage')} > 60"), schedule(FULLEST, f"{share('usage')} < 80")) == [
        ("`pack` prefers nodes that use more cpu, `pack` admits them up to 80 %, and `drain` evicts from those above "
        "60 %: evicted pods come back"),
    ]


def test_requests_and_nodes_that_are_emptied_count_too():
    assert loops(drain(f"{share('requested')} < 20"), schedule(LEAST_REQUESTED)) == [
        ("`pack` prefers nodes that have requests of less cpu, and `drain` evicts from those below 20 %: evicted pods "
        "come back"),
    ]


@pytest.mark.parametrize("documents", [
    (drain(f"{share('usage')} > 60"), schedule(FULLEST, f"{share('usage')} < 60")),
    (drain(f"{share('usage')} > 60"), schedule(FULLEST, f"{share('usage')} < 80", f"{share('usage')} < 50")),
    (drain(f"{share('usage')} > 60"), schedule(FULLEST), schedule("", f"{share('estimated')} < 50", name="below")),
    (drain(f"{share('usage')} > 60"), schedule(EMPTIEST)),
    (drain(f"{share('usage')} > 60"), schedule(MOST_REQUESTED)),
    (drain(f"{share('usage', 'memory')} > 60"), schedule(FULLEST)),
    (drain(f"{share('requested')} < 20"), schedule(MOST_REQUESTED)),
    (drain(f"{share('requested')} < 20"), schedule(LEAST_REQUESTED, f"{share('requested')} >= 20")),
    (drain(f"{share('usage')} > 60", "  enforcement: Audit\n"), schedule(FULLEST)),
    (drain(f"{share('usage')} > 60"), schedule(FULLEST, more="  enforcement: Warn\n")),
    (drain(f"{share('usage')} > 60", "  match: {nodes: {names: [a]}}\n"),
     schedule(FULLEST, more="  match: {nodes: {names: [b]}}\n")),
])
def test_disjoint_intervals_opposite_scores_and_other_amounts_are_no_loop(documents: tuple[str, ...]):
    assert loops(*documents) == []


def test_a_filter_of_another_profile_does_not_refuse_the_nodes():
    below = schedule("", f"{share('usage')} < 50", name="below", more="  profiles: [batch]\n")
    pack = schedule(FULLEST, more="  profiles: [services]\n")
    assert len(loops(drain(f"{share('usage')} > 60"), below, pack)) == 1


def test_thresholds_of_low_node_load_count():
    configuration = """\
apiVersion: descheduler/v1alpha2
kind: DeschedulerConfiguration
profiles:
- name: hot
  pluginConfig:
  - {name: LowNodeLoad, args: {highThresholds: {cpu: 70}, lowThresholds: {cpu: 40}}}
"""
    pack = schedule(FULLEST).removeprefix("---\n")
    assert loops(pack, configuration=configuration) == [
        ("`pack` prefers nodes that use more cpu, and `LowNodeLoad` of the profile `hot` evicts from those above 70 %: "
        "evicted pods come back"),
    ]
