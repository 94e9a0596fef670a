"""The views of policies, with the findings of compiler and linter, and the overview."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from koordpolicy.engine.cluster.sources.changes import KindView
from koordpolicy.engine.compile import Compiled
from koordpolicy.engine.documents import Document, Kind
from koordpolicy.engine.documents.specs import ParamsSpec, PluginSpec
from koordpolicy.engine.explanation import plain, shortened
from koordpolicy.engine.framework.points import Enforcement
from koordpolicy.engine.kubernetes.times import rfc3339
from koordpolicy.engine.source import Source
from koordpolicy.engine.texts import first_of

from .models.overview import ClusterOverview, Gauge, Waiting
from .models.policies import FileView, PoliciesView, PolicyView, RuleView
from .models.servers import KindAge
from .state import ConsoleState, UnknownNameError

_MOST_READS: Final = 100
_MOST_WAITING: Final = 50


def policies_view(state: ConsoleState) -> PoliciesView:
    """Return all policies with their rules, and the findings of compiler and linter."""
    policies = state.policies
    refuses: Counter[str] = Counter()
    verdicts = state.pending()
    for verdict in verdicts:
        if verdict.refusal is not None:
            refuses[verdict.refusal[0]] += len(verdict.names)
            continue
        known = np.zeros(len(verdict.names), np.bool_)
        for step in verdict.filters:
            if step.enforcement is Enforcement.ENFORCE:
                refuses[step.plugin] += int((~known[step.refused]).sum())
                known[step.refused] = True
    return PoliciesView(
        policies=[_policy(state, each, refuses[each.name]) for each in policies.documents
                  if each.kind is not Kind.TEST],
        files=list(policies.sources), faults=list(state.faults), pending=len(verdicts),
        pairs=len(verdicts) * len(state.cluster.names),
    )


def file_view(state: ConsoleState, file: str) -> FileView:
    """Return the text of a policy file; raise `UnknownNameError` for any other."""
    source = state.policies.sources.get(file)
    if source is None:
        raise UnknownNameError(f"`{shortened(file)}` is not one of the {len(state.policies.sources)} policy files")
    return FileView(file=file, text=source.text,
                    faults=[each for each in state.faults if each.file == file])


def overview(state: ConsoleState) -> ClusterOverview:
    """Return the state of the cluster and of its policies."""
    snapshot, cluster, policies = state.snapshot, state.cluster, state.policies
    verdicts = state.pending()
    problems = state.faults
    unplaced = sorted(verdicts, key=lambda each: (each.scheduled, each.pod.key))
    measured = int(np.count_nonzero(snapshot.cluster.fresh))
    gauges = []
    for resource, unit in (("cpu", "milli-cores"), ("memory", "bytes")):
        usage = snapshot.usage(resource)
        present = np.ones(snapshot.size, np.bool_) if usage.present is None else usage.present
        gauges.append(Gauge(
            resource=resource, unit=unit, allocatable=int(snapshot.allocatable(resource).sum()),
            requested=int(snapshot.requested(resource).sum()), used=float(usage.values[present].sum())))
    return ClusterOverview(
        now=rfc3339(state.now), source=state.name, nodes=snapshot.size,
        unschedulable=sum(bool(_spec(row.node).get("unschedulable")) for row in cluster.rows), measured=measured,
        running=int(snapshot.pod_count.sum()), pending=len(cluster.pending), gauges=gauges,
        policies=dict(Counter(each.kind.value for each in policies.documents)),
        digest=digest_of(policies.sources.values()),
        errors=sum(each.severity == "error" for each in problems),
        warnings=sum(each.severity == "warning" for each in problems),
        decided=len(verdicts), waiting=[Waiting(pod=each.pod.key, node=each.node, message=shortened(each.message()))
                 for each in unplaced[:_MOST_WAITING]],
        waiting_left_out=len(cluster.pending) - min(len(unplaced), _MOST_WAITING), lacking=list(state.lacking),
        kinds=kind_ages(state.watches(), state.now / 1e9),
    )


def kind_ages(watches: Mapping[str, KindView], now: float) -> list[KindAge]:
    """Return the state of the watch of each kind, those at fault and the oldest first; `now` in seconds."""
    found = [KindAge(kind=kind, age=max(0.0, round(now - each.listed, 1)) if each.listed else None,
                     fault=shortened(each.fault)) for kind, each in watches.items()]
    return sorted(found, key=lambda each: (not each.fault, -(each.age or 0.0), each.kind))


def digest_of(sources: Iterable[Source]) -> str:
    """Return a hash of files: of their names and texts."""
    found = hashlib.sha256()
    for each in sorted(sources, key=lambda source: source.name):
        found.update(f"{each.name}\0{each.digest.hex()}\n".encode("utf-8", "surrogatepass"))
    return found.hexdigest()[:12]


def _policy(state: ConsoleState, document: Document, refuses: int) -> PolicyView:
    spec = document.spec
    file, line, _ = document.span.place
    compiled = state.policies.compiled.get(id(document))
    plugin = next((each for each in state.policies.plugins if each.span is document.span), None)
    profiles = sorted(spec.profiles or ()) if isinstance(spec, PluginSpec) else []
    active = plugin is not None and (document.kind is not Kind.SCHEDULER or not profiles
                                     or not state.profiles.isdisjoint(profiles))
    reads = _reads(compiled) if compiled is not None else {}
    paths, reads_left_out = first_of(sorted({path for each in reads.values() for path in each}), _MOST_READS)
    return PolicyView(
        name=document.name, kind=document.kind.value, file=file, line=line,
        description=document.metadata.description,
        enforcement=spec.enforcement.value if isinstance(spec, PluginSpec) else "",
        points=[point.value for point in plugin.points] if plugin is not None else [], profiles=profiles,
        active=active or document.kind is Kind.PARAMS,
        reads=list(paths), reads_left_out=reads_left_out,
        params_from=[each.name for each in spec.params_from] if isinstance(spec, PluginSpec) else [],
        params=plain(spec.params) if isinstance(spec, PluginSpec | ParamsSpec) else {},
        rules=_rules(document, reads),
        refuses=refuses,
    )


def _reads(compiled: Compiled) -> dict[Source, list[str]]:
    """Return the paths that expressions read, by the source of each; of a variable as its first reader sees it."""
    from koordpolicy.engine.testing.instruments import programs_of  # noqa: PLC0415 - late

    found: dict[Source, list[str]] = {}
    for program in programs_of(compiled):
        found[program.source] = sorted(".".join(path) for path in program.checked.reads)
        for each in program.checked.definitions.values():
            found.setdefault(each.source, sorted(".".join(path) for path in each.reads))
    return found


def _rules(document: Document, reads: Mapping[Source, Sequence[str]]) -> list[RuleView]:
    from koordpolicy.engine.testing.instruments import places  # noqa: PLC0415 - late

    found = []
    for each in places(document).values():
        _, line, column = each.expression.span.place
        point, _, name = each.name.partition(".")
        paths, reads_left_out = first_of(reads.get(each.expression.source, ()), _MOST_READS)
        found.append(RuleView(point=point, name=name, expression=shortened(each.expression.text), line=line,
                          column=column, reads=list(paths), reads_left_out=reads_left_out))
    return found


def _spec(node: object) -> dict[str, object]:
    found = node.get("spec") if isinstance(node, dict) else None
    return found if isinstance(found, dict) else {}
