"""Fair sharing of a parent's resources among its quotas: scaled minimums, and shares of the unused rest.

(Koordinator's scale_minquota_when_over_root_res.go and runtime_quota_calculator.go; sharing by largest remainder.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from koordpolicy.engine.cluster.objects.pods import ResourceList


@dataclass(frozen=True, slots=True)
class Share:
    """One quota in one resource: its request (capped at its maximum), its minimum, and its shared weight."""

    name: str
    request: int
    minimum: int
    weight: int
    guarantee: int = 0
    lends: bool = True
    """True if the unused part of its minimum may be lent to others."""


def redistribute(total: int, shares: Sequence[Share]) -> dict[str, int]:
    """Return the runtime of each quota out of `total`.

    Every quota gets its request up to its minimum (or all of the minimum, if it does not lend). The rest goes to quotas
    with a higher request, by weight and never beyond their request, until nothing is left or all requests are met.
    """
    runtime: dict[str, int] = {}
    asking: list[Share] = []
    for share in shares:
        sure = max(share.minimum, share.guarantee)
        if share.request > sure:
            runtime[share.name] = sure
            asking.append(share)
        else:
            runtime[share.name] = share.request if share.lends else sure
    pool = total - sum(runtime.values())
    asking = [share for share in asking if share.weight > 0]
    while pool > 0 and asking:
        parts = largest_remainder(pool, {share.name: share.weight for share in asking})
        left: list[Share] = []
        for share in asking:
            got = min(parts[share.name], share.request - runtime[share.name])
            runtime[share.name] += got
            pool -= got
            if runtime[share.name] < share.request:
                left.append(share)
        asking = left
    return runtime


def largest_remainder(pool: int, weights: Mapping[str, int]) -> dict[str, int]:
    """Split `pool` by weights (all above 0): whole shares, then one each to the largest remainders, ties by name."""
    whole = sum(weights.values())
    parts = {name: pool * weight // whole for name, weight in weights.items()}
    remainders = sorted(weights, key=lambda name: (-(pool * weights[name] % whole), name))
    for name in remainders[: pool - sum(parts.values())]:
        parts[name] += 1
    return parts


def scale_minimums(
    total: Mapping[str, int], minimums: Mapping[str, Mapping[str, int]], scaled: Mapping[str, bool],
) -> dict[str, ResourceList | None]:
    """Return the minimums scaled to fit into `total`, by quota; None for those that are not scaled.

    In each resource that is short, the quotas without scaling get their minimums, and the others share the rest in
    proportion to theirs, rounded down.
    """
    names = {name for amounts in minimums.values() for name in amounts}
    fixed = ResourceList(dict.fromkeys(names, 0))
    flexible = ResourceList(dict.fromkeys(names, 0))
    for quota, amounts in minimums.items():
        sums = flexible if scaled[quota] else fixed
        for name, amount in amounts.items():
            sums[name] += amount
    short = {
        name: max(0, total[name] - fixed[name]) for name in names
        # An unknown total is not short.
        if name in total and fixed[name] + flexible[name] > total[name]
    }
    return {
        quota: ResourceList({
            # In the original's floating point, which may be one unit less than the exact share.
            name: amount if name not in short else int(amount / flexible[name] * short[name]) if flexible[name] else 0
            for name, amount in amounts.items()
        }) if scaled[quota] else None
        for quota, amounts in minimums.items()
    }
