"""The views of pods: the decision matrix, one node of it, and the search."""

from __future__ import annotations

import heapq
import operator
from collections.abc import Iterable
from itertools import chain, takewhile
from typing import Final, NamedTuple

import numpy as np

from koordpolicy.engine.documents import Kind
from koordpolicy.engine.framework.points import Enforcement
from koordpolicy.engine.scheduler.explain.explanation import explain_decision, explain_node
from koordpolicy.engine.scheduler.profiles.profile import Active
from koordpolicy.engine.scheduler.verdict.verdict import Verdict
from koordpolicy.engine.texts import first_of

from .models.pod import MatrixRow, PluginColumn, PodNodeView, PodView
from .models.search import SearchResult, SearchView
from .state import ConsoleState

_TRIALS: Final = 20
_MOST_FOUND: Final = 30
_MOST_NEAR: Final = 5


def pod_view(state: ConsoleState, key: str) -> PodView:
    """Return the decision about a pod for all nodes, made as if it were pending.

    Raises:
        UnknownNameError: there is no such pod.
        OverdueError: the deadline of the thread passed.
    """
    explained = state.explained(key)
    verdict, pod = explained.verdict, explained.pod
    return PodView(
        key=pod.key, node=explained.current, qos_class=pod.qos_class or pod.kubernetes_qos,
        priority_band=pod.priority_band, profile=verdict.profile, requests=dict(pod.requests), chosen=verdict.node,
        passed=len(verdict.passed), message=verdict.message(),
        refused_whole=verdict.refusal[0] if verdict.refusal is not None else "",
        filters=[_column(active, refused=_refusals(verdict, active.name)) for active in explained.profile.filters],
        scorers=[_column(active) for active in explained.profile.scores if _scored(verdict, active.name)],
        rows=_rows(verdict, [active.name for active in explained.profile.filters]),
        explanation=explain_decision(explained, trials=_TRIALS).to_json(),
    )


def pod_node_view(state: ConsoleState, key: str, node: str) -> PodNodeView:
    """Return the result of each plugin about a pod on one node.

    Raises:
        UnknownNameError: there is no such pod, or no such node.
        OverdueError: the deadline of the thread passed.
    """
    row = state.row(node)
    explained = state.explained(key)
    return PodNodeView(pod=key, node=node, passed=bool((explained.verdict.passed == row).any()),
                       explanation=explain_node(explained, node, trials=_TRIALS).to_json())


class _Name(NamedTuple):
    """A name that may be found, and what has it."""

    kind: str
    name: str
    document: str = ""

    @property
    def result(self) -> SearchResult:
        """The name as a search result."""
        return SearchResult(kind=self.kind, name=self.name, document=self.document)


def search(state: ConsoleState, text: str) -> SearchView:
    """Return the nodes, pods and policies whose names contain the text: names that begin with it first."""
    query = text.strip().lower()
    names = (
        [_Name("policy", each.name, each.kind.value) for each in state.policies.documents
         if each.kind is not Kind.TEST],
        [_Name("node", each) for each in state.cluster.names],
        [_Name("pod", each) for each in state.cluster.objects("Pod")],
    )
    # One kind with thousands of names must not hide the others.
    shown: list[tuple[int, _Name]] = []
    left_out = 0
    for known in names:
        found = []
        for each in known:
            own = each.name.lower()
            if query in own:
                begins = own.startswith(query) or own.partition("/")[2].startswith(query)
                found.append((0 if begins else 1, each))
        first, more = first_of(sorted(found), _MOST_FOUND // len(names))
        shown += first
        left_out += more
    shown.sort(key=lambda each: each[0])
    near = [] if shown or not query else _near(query, chain.from_iterable(names))
    return SearchView(found=[name.result for _, name in shown], left_out=left_out, near=near)


def _near(query: str, names: Iterable[_Name]) -> list[SearchResult]:
    """Return the names that have the longest beginning in common with a text, at least half of it."""
    found: list[tuple[int, _Name]] = []
    for each in names:
        shared = sum(1 for _ in takewhile(bool, map(operator.eq, query, each.name.lower())))
        if 2 * shared >= len(query):
            found.append((-shared, each))
    return [name.result for _, name in heapq.nsmallest(_MOST_NEAR, found)]


def _column(active: Active, *, refused: int = 0) -> PluginColumn:
    plugin = active.plugin
    return PluginColumn(name=plugin.name, origin=plugin.origin, document=bool(plugin.source or plugin.span),
                        enforcement=plugin.enforcement.value, weight=active.weight, refused=refused)


def _refusals(verdict: Verdict, name: str) -> int:
    return next((len(step.refused) for step in verdict.filters if step.plugin == name), 0)


def _scored(verdict: Verdict, name: str) -> bool:
    return any(step.plugin == name for step in verdict.scores)


def _rows(verdict: Verdict, filters: list[str]) -> list[MatrixRow]:
    refused: list[list[int]] = [[] for _ in verdict.names]
    watched: list[list[int]] = [[] for _ in verdict.names]
    for step in verdict.filters:
        into = refused if step.enforcement is Enforcement.ENFORCE else watched
        if step.plugin in filters:
            number = filters.index(step.plugin)
            for row in step.refused.tolist():
                into[row].append(number)
    totals = np.zeros(len(verdict.passed), np.int64) if verdict.totals is None else verdict.totals
    passed = dict(zip(verdict.passed.tolist(), totals.tolist(), strict=True))
    scores = [step.scores.values for step in verdict.scores]

    def place(row: int) -> tuple[bool, int, int, str]:
        return row not in passed, -passed.get(row, 0), len(refused[row]), str(verdict.names[row])

    return [
        MatrixRow(node=str(verdict.names[row]), refused=refused[row], watched=watched[row], total=passed.get(row),
                  scores=[int(each[row]) for each in scores] if row in passed else [])
        for row in sorted(range(len(verdict.names)), key=place)
    ]
