"""Compiled forms of QoS and descheduler documents."""

from __future__ import annotations

from koordpolicy.engine.compile import (
    CompiledDescheduler,
    CompiledQoS,
    CompiledScheduler,
    EvictProgram,
    SuppressCPUProgram,
    compile_documents,
)
from koordpolicy.engine.documents import SortOrder, load
from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Plugin
from koordpolicy.engine.source import Source

HEAD = "apiVersion: policy.koordinator.sh/v1alpha2\nkind: {kind}\nmetadata: {{name: x}}\nspec:\n"


def plugin(kind: str, spec: str) -> Plugin:
    (found,) = compile_documents(load([Source("a.yaml", HEAD.format(kind=kind) + spec)]))
    return found


SCHEDULER = """\
  params: {percent: 65}
  filter:
  - {name: cool, expression: usage.cpu * 100 <= allocatable.cpu * params.percent}
  score:
  - {name: most, expression: usage.cpu, weight: 2}
"""


def test_a_scheduler_document_becomes_programs_with_the_params_of_the_profile() -> None:
    found = plugin("SchedulerPlugin", SCHEDULER)
    assert (found.framework, found.points) == (Framework.SCHEDULER, (Point.FILTER, Point.SCORE))
    made = found.make({"percent": 70}, None)
    assert isinstance(made, CompiledScheduler)
    assert made.params == {"percent": 70}
    ((rule,), (item,)) = made.filter, made.score
    assert (rule.name, item.item.name, item.item.weight) == ("cool", "most", 2)
    values = {"usage": {"cpu": 700}, "allocatable": {"cpu": 1000}}
    assert [rule.program.evaluate({**values, "params": {"percent": each}}) for each in (70, 65)] == [True, False]


QOS = """\
  params: {percent: 65}
  thresholds:
  - {name: pressed, expression: usage.cpu > allocatable.cpu * params.percent / 100, for: 5s}
  actions:
  - name: squeeze
    when: thresholds.pressed
    suppressCPU: {target: allocatable.cpu * params.percent / 100 - nonBestEffortUsage.cpu}
  - name: evict
    evict:
      criteria: [{name: batch, expression: podInfo.priorityBand == 'koord-batch'}]
      sort: [{expression: podUsage.cpu, order: Descending}]
      release: {resource: cpu, amount: usage.cpu - 1000}
"""


def test_a_qos_document_becomes_programs_with_the_params_of_the_profile() -> None:
    found = plugin("QoSPlugin", QOS)
    assert (found.framework, found.points) == (Framework.QOS, (Point.STRATEGY,))
    made = found.make({"percent": 70}, None)
    assert isinstance(made, CompiledQoS)
    assert made.params == {"percent": 70}
    (threshold,) = made.thresholds
    assert (threshold.rule.name, threshold.for_ns, threshold.cool_down_ns) == ("pressed", 5_000_000_000, 0)
    values = {"usage": {"cpu": 800}, "allocatable": {"cpu": 1000}, "params": made.params}
    assert threshold.rule.program.evaluate(values) is True
    squeeze, evict = made.actions
    assert isinstance(squeeze.effect, SuppressCPUProgram)
    assert squeeze.effect.target.evaluate({**values, "nonBestEffortUsage": {"cpu": 300}}) == 400
    assert squeeze.when is not None
    assert squeeze.when.evaluate({"thresholds": {"pressed": True}}) is True
    assert isinstance(evict.effect, EvictProgram)
    assert [key.order for key in evict.effect.sort] == [SortOrder.DESCENDING]
    assert evict.effect.criteria[0].program.evaluate({"podInfo": {"priorityBand": "koord-batch"}}) is True


def test_timers_are_remembered_while_the_text_of_their_item_is_the_same() -> None:
    def keys(spec: str) -> tuple[str, ...]:
        made = plugin("QoSPlugin", spec).make({}, None)
        return (*(each.key for each in made.thresholds), *(each.key for each in made.actions))

    one, other = keys(QOS), keys(QOS.replace("usage.cpu - 1000", "usage.cpu - 2000"))
    assert (one[:2], one[2] == other[2]) == (other[:2], False)


DESCHEDULER = """\
  type: Balance
  aggregates:
  - {name: mean, over: nodes, function: avg, expression: usage.cpu}
  nodes: {source: double(usage.cpu) > aggregates.mean, target: double(usage.cpu) < aggregates.mean}
  criteria: [{name: movable, expression: pod.metadata.namespace != 'kube-system'}]
  sort: [{expression: podInfo.priority}]
  until: double(usage.cpu) <= aggregates.mean
"""


def test_a_descheduler_document_becomes_programs() -> None:
    found = plugin("DeschedulerPlugin", DESCHEDULER)
    assert (found.framework, found.points) == (Framework.DESCHEDULER, (Point.BALANCE,))
    made = found.make({}, None)
    assert isinstance(made, CompiledDescheduler)
    assert made.source is not None
    assert made.source.evaluate({"usage": {"cpu": 5}, "aggregates": {"mean": 4.5}}) is True
    assert [rule.name for rule in made.criteria] == ["movable"]
    assert (made.target is None, made.until is None, len(made.aggregates)) == (False, False, 1)


def test_the_type_says_at_which_point_a_descheduler_document_takes_part() -> None:
    for kind, point in (("Deschedule", Point.DESCHEDULE), ("EvictionFilter", Point.EVICTION_FILTER)):
        found = plugin("DeschedulerPlugin", f"  type: {kind}\n  criteria: [{{name: a, expression: 'true'}}]\n")
        assert found.points == (point,)
