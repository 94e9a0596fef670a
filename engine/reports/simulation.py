"""The replay of a trace as a page: allocation, nodes, refusals by rule, and costs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from koordpolicy.engine.cluster.sources.trace import DEVICE, TraceNode, Workload
from koordpolicy.engine.scheduler.profiling import Blame, ExpressionCost, Measurements
from koordpolicy.engine.scheduler.simulate import SimulationResult, UnplacedPods

from .charts import SERIES, Chart, ChartSeries, curves, shortened, stacked
from .nodes import NodeKind, NodeUse, ResourceColumn, heat_maps
from .page import bar, code, page, table, tiles

_GIB: Final = 1024
_MOST_POINTS: Final = 400
"""The maximum number of points of a curve over arrivals."""
_MOST_SPANS: Final = 100
_FEWEST_SPANS: Final = 12
_PODS_PER_SPAN: Final = 10
"""The minimum number of pods per span of the refusals: shares of fewer pods would vary too much."""
_MOST_ROWS: Final = 20
_MOST_TEXT: Final = 160
_RESOURCES: Final = (
    ResourceColumn("cpu", "cores", 1000),
    ResourceColumn("memory", "GiB", _GIB),
    ResourceColumn("GPU", "devices", DEVICE),
)


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replay: its settings, results and measurements."""

    title: str
    about: str
    workload: Workload
    result: SimulationResult
    measured: Measurements


def simulation_page(replayed: Replayed) -> str:
    """Return the page."""
    result = replayed.result
    parts = [tiles(_figures(result)), *_errors(result), *_allocation(result)]
    if replayed.workload.nodes:
        parts += _nodes(replayed.workload, result)
    parts += _refusals(result, replayed.measured)
    parts += costs(replayed.measured)
    return page(replayed.title, replayed.about, parts, tooltips=True)


def _figures(result: SimulationResult) -> Iterator[tuple[str, str]]:
    yield "pods arrived", f"{result.arrivals:,}"
    yield "found no node", f"{result.failed:,}"
    final = result.final
    yield "cpu allocated", f"{final.cpu:.2f} %"
    yield "memory allocated", f"{final.memory:.2f} %"
    if result.capacity.gpu:
        yield "GPU allocated", f"{final.gpu:.2f} %"
        yield "GPU requests arrived", f"{100 * result.capacity.arrived_gpu / result.capacity.gpu:.1f} %"
        found = result.fragmentation(result.highest_load)
        if found is not None:
            yield "GPU fragmented", f"{found[0]:.2f} %"
    yield "pods/s, while measuring", f"{result.pods_per_second:,.0f}"


def _errors(result: SimulationResult) -> Iterator[str]:
    if result.errors:
        lines = "<br>".join(
            f"<code>{escape(each.plugin)}</code> at {escape(each.point.value)}: {escape(shortened(each.message, 300))}"
            for each in result.errors[:_MOST_ROWS]
        )
        count = _count(len(result.errors), "kind")
        yield f'<p class="missing">{count} of errors in plugins and expressions:<br>{lines}</p>'


# Allocation and fragmentation


def _allocation(result: SimulationResult) -> Iterator[str]:
    if not result.arrivals:
        yield "<h2>Allocation</h2><p>No pod arrived.</p>"
    elif result.capacity.gpu and result.highest_load:
        yield "<h2>Allocation and fragmentation by arrived load</h2>"
        yield ("<p>The load is the GPU request of all pods that have arrived, also of those that found no node, in "
               "percent of the cluster's GPU. Fragmented is the idle GPU that the next pod could not use.</p>")
        found = result.curves()
        # Large arrivals skip some loads.
        x = [each for each, value in enumerate(found.gpu) if not math.isnan(value)]

        def at(values: Sequence[float]) -> list[float]:
            return [values[each] for each in x]

        titles = [f"{each} % of load" for each in x]
        label = "arrived GPU requests (% of the cluster's GPU)"
        charts = [
            curves(
                Chart(
                    "allocation",
                    "Allocated",
                    label,
                    "% of the cluster",
                    x,
                    titles,
                    (
                        ChartSeries("GPU", at(found.gpu)),
                        ChartSeries("cpu", at(found.cpu)),
                        ChartSeries("memory", at(found.memory)),
                    ),
                    highest=100,
                ),
            ),
        ]
        if found.fragmented_of_cluster:
            charts.append(curves(Chart("fragmentation", "Fragmented GPU", label, "% of GPU", x, titles, (
                ChartSeries("of the cluster's GPU", at(found.fragmented_of_cluster)),
                ChartSeries("of the idle GPU", at(found.fragmented_of_idle)),
            ), highest=100)))
        yield f'<div class="pair">{"".join(charts)}</div>'
        yield _by_load(result)
    else:
        yield "<h2>Allocation by arrivals</h2>"
        yield "<p>Hardly any GPU was requested, or there is none: the load, which counts GPU, says nothing here.</p>"
        yield f'<div class="pair">{_by_arrivals(result)}</div>'


def _by_load(result: SimulationResult) -> str:
    headings = ["load", "cpu", "memory", "GPU"]
    measured = any(record.fragmented is not None for record in result.records[:1])
    if measured:
        headings += ["GPU fragmented", "of the idle GPU"]
    rows = []
    for percent, each in result.allocations().items():
        cells = [f"{percent} %", f"{each.cpu:.2f}", f"{each.memory:.2f}", f"{each.gpu:.2f}"]
        if measured:
            cells += [f"{value:.2f}" for value in result.fragmentation(percent) or (math.nan, math.nan)]
        rows.append(cells)
    if not rows:
        return ""
    return ("<details><summary>The figures, in percent</summary>"
            f"{table(headings, rows, numbers=range(len(headings)))}</details>")


def _by_arrivals(result: SimulationResult) -> str:
    every = max(1, math.ceil(result.arrivals / _MOST_POINTS))
    chosen = sorted({*range(0, result.arrivals, every), result.arrivals - 1})
    x = [number + 1 for number in chosen]
    capacity = result.capacity

    def share(amounts: Sequence[int], has: int) -> list[float]:
        return [100 * amount / has if has else 0.0 for amount in amounts]

    return curves(Chart(
        "allocation", "Allocated", "pods that have arrived", "% of the cluster", x,
        [f"after {each:,} pods" for each in x], (
            ChartSeries("cpu", share([result.records[number].cpu for number in chosen], capacity.cpu)),
            ChartSeries("memory", share([result.records[number].memory for number in chosen], capacity.memory)),
        ), highest=100,
    ))


# Nodes


def _nodes(workload: Workload, result: SimulationResult) -> Iterator[str]:
    resources = _RESOURCES if result.capacity.gpu else _RESOURCES[:2]
    half = result.arrivals // 2
    moments = ("before", f"after half of the pods ({half:,})", f"after all {result.arrivals:,} pods")
    stood = ([0, half, result.arrivals] if result.arrivals else [0])
    used = _used(workload, result.placed, stood)
    found = [
        NodeUse(node.name, _kind(node, len(resources)),
                tuple(each[node.name][: len(resources)] for each in used))
        for node in sorted(workload.nodes, key=_by_kind)
    ]
    yield "<h2>Nodes</h2>"
    yield ("<p>A cell is a node, at the same place in every map; its colour is the share of the resource that the pods "
           "there request.</p>")
    yield heat_maps(found, resources, moments[: len(stood)])


def _used(
    workload: Workload, placed: Mapping[str, str], moments: Sequence[int],
) -> list[dict[str, tuple[int, int, int]]]:
    """Return the used amounts by node after a number of arrivals: milli-cores, MiB and thousandths of devices."""
    used = {node.name: (0, 0, 0) for node in workload.nodes}
    states = []
    done = 0
    for moment in moments:
        for pod in workload.pods[done:moment]:
            node = placed.get(pod.name)
            if node is not None:
                cpu, memory, gpu = used[node]
                used[node] = cpu + pod.cpu_milli, memory + pod.memory_mib, gpu + pod.gpu_total
        done = moment
        states.append(dict(used))
    return states


def _by_kind(node: TraceNode) -> tuple[object, ...]:
    return -node.gpus, node.model, -node.cpu_milli, -node.memory_mib, _own_name(node.name), node.name


def _own_name(name: str) -> str:
    """Return a node's name without the prefix of the workload's permutation."""
    number, _, rest = name.partition("-")
    return rest if number.isdigit() else name


def _kind(node: TraceNode, resources: int) -> NodeKind:
    size = f"{node.cpu_milli / 1000:g} cores, {node.memory_mib / _GIB:.4g} GiB"
    gpus = f"{node.gpus} x {node.model or 'GPU'}, " if node.gpus else ""
    return NodeKind(gpus + size, (node.cpu_milli, node.memory_mib, node.gpus * DEVICE)[:resources])


# Refusals


def _refusals(result: SimulationResult, measured: Measurements) -> Iterator[str]:
    yield "<h2>Refused pods</h2>"
    if not measured.unplaced:
        yield "<p>Every pod found a node.</p>"
        return
    pods: Counter[Blame] = Counter()
    nodes: Counter[Blame] = Counter()
    alone: Counter[Blame] = Counter()
    for each in measured.unplaced:
        pods.update(each.nodes.keys())
        nodes.update(each.nodes)
        if len(each.nodes) == 1:
            alone.update(each.nodes.keys())
    ordered = sorted(pods, key=lambda blame: (-nodes[blame], blame.plugin, blame.rule, blame.reason))
    yield (f"<p>{_count(len(measured.unplaced), 'pod')} of {measured.decisions:,} found no node. A pod that several "
           "rules kept from different nodes counts for each of them by its share of the nodes.</p>")
    yield f'<div class="pair">{_over_arrivals(measured, ordered)}{_shapes(result)}</div>'
    total = sum(nodes.values()) or 1
    rows = [
        [blame.plugin, blame.rule, shortened(blame.reason, _MOST_TEXT), f"{pods[blame]:,}", f"{alone[blame]:,}",
         f"{nodes[blame] / pods[blame]:,.0f}", bar(nodes[blame] / total)]
        for blame in ordered[:_MOST_ROWS]
    ]
    yield table(["plugin", "rule", "reason", "pods", "of these by it alone", "nodes per pod", "share of the refusals"],
                rows, numbers=(3, 4, 5))
    yield _more(len(ordered) - _MOST_ROWS, "rule")


def _over_arrivals(measured: Measurements, ordered: Sequence[Blame]) -> str:
    spans = min(measured.decisions, _MOST_SPANS, max(_FEWEST_SPANS, measured.decisions // _PODS_PER_SPAN))
    bounds = [measured.decisions * number // spans for number in range(spans + 1)]
    chosen = list(ordered[: SERIES - 1] if len(ordered) > SERIES else ordered)
    places = {blame: number for number, blame in enumerate(chosen)}
    amounts = [[0.0] * spans for _ in range(len(chosen) + (len(ordered) > len(chosen)))]
    span = 0
    for each in measured.unplaced:
        while each.number >= bounds[span + 1]:
            span += 1
        total = sum(each.nodes.values())
        if not each.nodes:
            continue
        for blame, count in each.nodes.items():
            share = count / total if total else 1 / len(each.nodes)
            amounts[places.get(blame, len(chosen))][span] += share
    arrived = [bounds[number + 1] - bounds[number] for number in range(spans)]
    labels = [_label(blame) for blame in chosen]
    if len(ordered) > len(chosen):
        labels.append(f"{len(ordered) - len(chosen)} other rules")
    return stacked(Chart(
        "refusals", "Pods that found no node, by rule", "pods that have arrived", "% of the pods that arrived then",
        [(bounds[number] + bounds[number + 1]) / 2 for number in range(spans)],
        [f"pods {bounds[number] + 1:,} to {bounds[number + 1]:,}" for number in range(spans)],
        [ChartSeries(label, [100 * amount / count for amount, count in zip(found, arrived, strict=True)])
         for label, found in zip(labels, amounts, strict=True)],
        show="{:.1f} %".format,
    ))


def _label(blame: Blame) -> str:
    # The message of a rule without one is its expression, which is longer than its name.
    named = blame.rule and (not blame.reason or blame.reason.startswith("`"))
    return f"{blame.plugin}: {blame.rule if named else blame.reason}"


def _shapes(result: SimulationResult) -> str:
    rows = [_shape(each) for each in result.failed_shapes[:10]]
    more = _more(len(result.failed_shapes) - len(rows), "shape")
    return ("<figure><figcaption>What they requested</figcaption>"
            f"{table(['pods', 'cpu', 'memory', 'GPU', 'model'], rows, numbers=(0, 1, 2, 3))}{more}</figure>")


def _shape(failed: UnplacedPods) -> list[str]:
    gpu = f"{failed.gpus} x {failed.gpu_milli / DEVICE:g}" if failed.gpus else "-"
    models = shortened("|".join(failed.models), 40) or ("any" if failed.gpus else "-")
    return [f"{failed.count:,}", f"{failed.cpu_milli / 1000:g}", f"{failed.memory_mib / _GIB:.4g} GiB", gpu, models]


# Costs


def costs(measured: Measurements) -> Iterator[str]:
    """Yield the time of plugins and expressions, and the refusals of plugins."""
    yield "<h2>Time by plugin</h2>"
    if not measured.decisions:
        yield "<p>Nothing was decided.</p>"
        return
    pods: Counter[str] = Counter()
    for each in measured.unplaced:
        pods.update({blame.plugin for blame in each.nodes})
    whole = measured.seconds or 1.0
    spent = sum(cost.seconds for cost in measured.plugins.values())
    yield (f"<p>{measured.decisions:,} decisions took {measured.seconds:.2f} s of processor time, "
           f"{1e6 * measured.seconds / measured.decisions:,.0f} µs each. Where answers of an earlier decision still "
           "hold, a plugin is not called again. Nodes that were refused count in each decision anew, for who refused "
           "them first, also where the pod found another node.</p>")
    rows = [
        [name, _calls(cost.calls), f"{cost.seconds:.3f}", bar(min(1.0, cost.seconds / whole)),
         f"{1e6 * cost.seconds / measured.decisions:,.1f}", f"{cost.refused:,}", f"{pods[name]:,}"]
        for name, cost in measured.plugins.items()
    ]
    rest = max(0.0, measured.seconds - spent)
    rows.append(["all else", "the cycle, the cluster's columns", f"{rest:.3f}", bar(min(1.0, rest / whole)),
                 f"{1e6 * rest / measured.decisions:,.1f}", "", ""])
    yield table(
        ["plugin", "calls", "seconds", "share", "µs per decision", "nodes refused", "unplaced pods refused"],
        rows, numbers=(2, 4, 5, 6),
    )
    yield "<h2>Slowest expressions</h2>"
    if not measured.expressions:
        yield "<p>No document takes part.</p>"
        return
    yield "<p>Evaluations are counted by node; one pass over the columns answers for many.</p>"
    yield table(
        ["document", "rule", "expression", "evaluations", "passes", "errors", "seconds", "share", "ns per evaluation"],
        [_expression(each, whole) for each in measured.expressions[:_MOST_ROWS]], numbers=(3, 4, 5, 6, 8),
    )
    yield _more(len(measured.expressions) - _MOST_ROWS, "expression")


def _expression(each: ExpressionCost, whole: float) -> list[str]:
    return [
        each.plugin, f"{each.point}.{each.rule}", code(shortened(each.text, _MOST_TEXT)), f"{each.rows:,}",
        f"{each.calls:,}", f"{each.errors:,}", f"{each.seconds:.3f}", bar(min(1.0, each.seconds / whole)),
        f"{1e9 * each.seconds / each.rows:,.0f}" if each.rows else "-",
    ]


def _calls(calls: Mapping[str, int]) -> str:
    return ", ".join(f"{method} {count:,}" for method, count in calls.items()) or "none"


def _more(count: int, what: str) -> str:
    return f'<p class="soft">and {_count(count, f"more {what}")}</p>' if count > 0 else ""


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' if count != 1 else ''}"
