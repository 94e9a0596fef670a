"""Linting costs time in proportion to the text, or says which bound the text exceeds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest

from koordpolicy.engine.documents import load
from koordpolicy.engine.source import PolicyError, Source

from .conftest import findings

HEAD = (
    "apiVersion: policy.koordinator.sh/v1alpha2\nkind: {kind}\n"
    "metadata: {{name: {name}, annotations: {{policy.koordinator.sh/description: About.}}}}\nspec:\n"
)
SCHEDULER = HEAD.format(kind="SchedulerPlugin", name="many")


def listed(name: str, item: str, number: int) -> str:
    return f"  {name}:\n" + "".join(f"  - {item.replace('%', str(each))}\n" for each in range(number))


LISTS = {
    "filter": "{name: r%, expression: 'usage.cpu < %'}",
    "score": "{name: r%, expression: 'usage.cpu - %'}",
    "matchConditions": "{name: r%, expression: 'pod.metadata.name != \"%\"'}",
    "variables": "{name: v%, expression: 'usage.cpu + %'}",
    "aggregates": "{name: a%, over: nodes, function: sum, expression: 'usage.cpu + %'}",
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_of_more_than_a_thousand_items_is_refused_by_its_bound(name: str) -> None:
    rest = "" if name == "filter" else "  filter: [{name: f, expression: 'true'}]\n"
    source = Source("a.yaml", SCHEDULER + rest + listed(name, LISTS[name], 1001))
    assert [f"{each.span}: {each.message}" for each in load([source]).problems] == [
        f"a.yaml:{5 if name == 'filter' else 6}:3: `spec.{name}` has more than 1,000 items",
    ]
    assert not load([Source("a.yaml", SCHEDULER + rest + listed(name, LISTS[name], 1000))]).problems


def test_more_than_five_hundred_params_are_refused_by_their_bound() -> None:
    params = "".join(f"    p{each}: 1\n" for each in range(501))
    source = Source("a.yaml", f"{SCHEDULER}  filter: [{{name: f, expression: 'true'}}]\n  params:\n{params}")
    assert [f"{each.span}: {each.message}" for each in load([source]).problems] == [
        "a.yaml:6:3: `spec.params` has more than 500 fields",
    ]


def documents(number: int, spec: str, kind: str = "SchedulerPlugin") -> str:
    return "---\n".join(
        HEAD.format(kind=kind, name=f"d{each}") + spec.replace("%", str(each)) for each in range(number)
    )


DRAINS = (
    "  type: Balance\n  match: {nodes: {names: [n%]}}\n  criteria: [{name: a, expression: 'true'}]\n"
    "  nodes: {source: 'usage.cpu * 100 / allocatable.cpu > 60', target: 'usage.cpu * 100 / allocatable.cpu < 30'}\n"
)
WHOLE = {
    "one list of rules": SCHEDULER + listed("filter", LISTS["filter"], 1000),
    "one list of variables": f"{SCHEDULER}  filter: [{{name: f, expression: 'true'}}]\n"
    + listed("variables", LISTS["variables"], 1000),
    "a chain of variables": f"{SCHEDULER}  filter: [{{name: f, expression: 'true'}}]\n  variables:\n"
    + "".join(f"  - {{name: v{each}, expression: '1'}}\n" for each in range(100)) + "".join(
        f"  - {{name: v{each}, expression: 'variables.v{each - 100} + 1'}}\n" for each in range(100, 1000)),
    "names that are unknown": SCHEDULER + listed("filter", "{name: r%, expression: 'variables.v% < usage.cpx%'}", 1000),
    "params that nobody reads": f"{SCHEDULER}  filter: [{{name: f, expression: 'params.p0 == 1'}}]\n  params:\n"
    + "".join(
        f"    p{each}: 1\n" for each in range(500)),
    "documents with params of one": HEAD.format(kind="PolicyParams", name="p") + "  params:\n" + "".join(
        f"    p{each}: 1\n" for each in range(500)
    ) + "---\n" + documents(1000, "  paramsFrom: [{name: p}]\n  filter: [{name: f, expression: 'params.p1 == %'}]\n"),
    "pools": documents(1500, DRAINS, "DeschedulerPlugin"),
    "pools that meet": documents(
        600, DRAINS.replace("  match: {nodes: {names: [n%]}}\n", "").replace("60", "6%"), "DeschedulerPlugin",
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_time_grows_with_the_text_and_not_with_its_square(name: str) -> None:
    started = time.process_time()
    with contextlib.suppress(PolicyError):
        findings(WHOLE[name])
    # A tenth of it is usual; what is quadratic takes minutes.
    assert time.process_time() - started < 30


def test_a_rule_that_compares_pairs_says_from_where_on_it_did_not() -> None:
    found = [each for each in findings(documents(1500, DRAINS, "DeschedulerPlugin")) if each.rule.id == "KP031"]
    assert [each.found.message for each in found] == [
        "the documents have more than 1,000,000 pairs to compare here: from this one on they were not compared",
    ]


MEETING_DRAINS = DRAINS.replace("  match: {nodes: {names: [n%]}}\n", "").replace("60", "6%")
SYSCTL = "  actions:\n  - name: swap\n    sysctl: {name: vm.swappiness, value: '1%'}\n"
PREFERS_FULL = "---\n" + HEAD.format(kind="SchedulerPlugin", name="pack") + (
    "  score: [{name: s, expression: 'math.least(100, usage.cpu * 100 / allocatable.cpu)'}]\n")
MORE = "there are more than 10 findings like this: from this one on they are not listed"


@pytest.mark.parametrize(("rule", "most", "more", "text"), [
    # Of 11 pools the last one meets 10 others; of 5 plugins each two write the same file.
    ("KP031", 11, 12, lambda number: documents(number, MEETING_DRAINS, "DeschedulerPlugin")),
    ("KP039", 5, 6, lambda number: documents(number, SYSCTL, "QoSPlugin")),
    ("KP043", 10, 11, lambda number: documents(number, MEETING_DRAINS, "DeschedulerPlugin") + PREFERS_FULL),
])
def test_what_a_rule_finds_is_cut_with_a_finding_that_says_so(
    rule: str, most: int, more: int, text: Callable[[int], str],
) -> None:
    def messages(number: int) -> list[str]:
        return [each.found.message for each in findings(text(number)) if each.rule.id == rule]

    all_of_them, cut = messages(most), messages(more)
    assert MORE not in all_of_them
    assert cut.count(MORE) == 1
    assert len(cut) == {"KP031": len(all_of_them) + 11, "KP039": 11, "KP043": 11}[rule]
