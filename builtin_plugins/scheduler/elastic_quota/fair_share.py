"""How a parent's resources are shared among its quotas: scaling of minimums, and fair sharing of what is not lent.

(Koordinator's scale_minquota_when_over_root_res.go and runtime_quota_calculator.go; sharing by largest remainder.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from koordpolicy.engine.cluster.objects.pods import ResourceList


@dataclass(frozen=True, slots=True)
class Share:
    """One quota in one resource: what it asks for (cut at its maximum), is sure of, and its weight among the others."""

    name: str
    request: int
    minimum: int
    weight: int
    guarantee: int = 0
    lends: bool = True
    """Whether what it does not ask for of its minimum may go to others."""


def redistribute(total: int, shares: Sequence[Share]) -> dict[str, int]:
    """Return what each quota may use of `total`.

    Everyone gets what it asks for up to its minimum (or all of that, if it does not lend). What is left goes to those
    that ask for more, by weight and never beyond their request, until nothing is left or nobody asks.
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
    """Return the minimums that fit into `total` where all together do not, by quota; None for those not to be scaled.

    In each resource that is short, the ones that are not scaled keep theirs, and the others share the rest in
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
        # Of what is not known at all nothing is known to be short.
        if name in total and fixed[name] + flexible[name] > total[name]
    }
    return {
        quota: ResourceList({
            # In the floating point of the original, which now and then comes to one unit less than the exact share.
            name: amount if name not in short else int(amount / flexible[name] * short[name]) if flexible[name] else 0
            for name, amount in amounts.items()
        }) if scaled[quota] else None
        for quota, amounts in minimums.items()
    }
