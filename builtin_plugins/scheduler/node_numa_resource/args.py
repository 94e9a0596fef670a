"""NodeNUMAResourceArgs: strict reading of version v1, its defaults, conversion to the internal form, validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..allocation.resource_scoring import LEAST, AllocationScorer, allocation_faults, read_allocation_strategy
from ..allocation.strict_args import raise_faults, read_args, text
from .cpus import FULL_PCPUS, SPREAD_BY_PCPUS

KIND: Final = "NodeNUMAResourceArgs"

_FIELDS: Final = {
    "defaultCPUBindPolicy": text, "scoringStrategy": read_allocation_strategy,
    "numaScoringStrategy": read_allocation_strategy,
}
_STRATEGY: Final[Mapping[str, Any]] = {
    "type": LEAST, "resources": [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}],
}


@dataclass(frozen=True, slots=True)
class NumaArgs:
    """The internal form: the bind policy of pods that name none, and how nodes and sets of NUMA nodes are scored.

    The NUMA scorer has the kind of `numaScoringStrategy` and the resources of `scoringStrategy`, as Koordinator's.
    """

    default_bind: str
    scorer: AllocationScorer
    numa_scorer: AllocationScorer


def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return v1 arguments with their defaults; raises ValueError for what is wrong, with the fields' paths."""
    full = default_args(args)
    raise_faults(validate(full))
    return full


def ignored_args(args: Mapping[str, Any]) -> Mapping[str, str]:
    """Return which of valid v1 arguments have no effect, with the reason."""
    full = default_args(args)
    if full["numaScoringStrategy"].get("resources") == full["scoringStrategy"].get("resources"):
        return {}
    return {"numaScoringStrategy.resources": "as in koord-scheduler, the resources of `scoringStrategy` count"}


def default_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return v1 arguments, still in v1 terms, with their defaults filled in; raises ValueError like `read_args`."""
    defaults = {"defaultCPUBindPolicy": FULL_PCPUS, "scoringStrategy": _STRATEGY, "numaScoringStrategy": _STRATEGY}
    return {**defaults, **read_args(args, KIND, _FIELDS)}


def convert(full: Mapping[str, Any]) -> NumaArgs:
    """Return the internal form of v1 arguments that are complete and valid."""
    scoring = full["scoringStrategy"]
    return NumaArgs(
        full["defaultCPUBindPolicy"], AllocationScorer.of(scoring),
        AllocationScorer.of(scoring, full["numaScoringStrategy"]["type"]),
    )


def validate(full: Mapping[str, Any]) -> Iterator[str]:
    """Yield the faults of arguments, each with the field's path."""
    if full["defaultCPUBindPolicy"] not in ("", FULL_PCPUS, SPREAD_BY_PCPUS):
        yield (
            f"`defaultCPUBindPolicy` is `{full['defaultCPUBindPolicy']}`: write `{FULL_PCPUS}` or `{SPREAD_BY_PCPUS}`,"
            " or leave it empty"
        )
    yield from allocation_faults(full["scoringStrategy"], "scoringStrategy")
    yield from allocation_faults(full["numaScoringStrategy"], "numaScoringStrategy")
