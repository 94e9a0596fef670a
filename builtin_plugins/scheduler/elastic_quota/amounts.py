"""Arithmetic on resource lists as quotas need it, and how Koordinator prints them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from koordpolicy.engine.cluster.objects.pods import ResourceList
from koordpolicy.engine.kubernetes.quantity import Quantity, QuantityFormat


def masked(amounts: Mapping[str, int], names: Collection[str]) -> ResourceList:
    """Return only the amounts with these names."""
    return ResourceList({name: amount for name, amount in amounts.items() if name in names})


def added(left: Mapping[str, int], right: Mapping[str, int]) -> ResourceList:
    """Return the sums by name."""
    total = ResourceList(left)
    for name, amount in right.items():
        total[name] += amount
    return total


def subtracted(left: Mapping[str, int], right: Mapping[str, int], *, least: int | None = None) -> ResourceList:
    """Return the differences by name, at least `least` if it is given."""
    total = ResourceList(left)
    for name, amount in right.items():
        total[name] -= amount
    return total if least is None else ResourceList({name: max(least, amount) for name, amount in total.items()})


def largest(left: Mapping[str, int], right: Mapping[str, int]) -> ResourceList:
    """Return the larger amount by name; a name in only one list has its amount there."""
    total = ResourceList(left)
    for name, amount in right.items():
        total[name] = max(total[name], amount) if name in total else amount
    return total


def exceeded(amounts: Mapping[str, int], limit: Mapping[str, int]) -> list[str]:
    """Return, sorted, the names that both lists have and in which the amount is above the limit."""
    return sorted(name for name, amount in amounts.items() if name in limit and amount > limit[name])


def printed(amounts: Mapping[str, int]) -> str:
    """Return sorted `name:quantity` pairs, as in Koordinator's messages."""
    return ",".join(f"{name}:{quantity(name, amounts[name])}" for name in sorted(amounts)) or "<empty>"


def quantity(name: str, amount: int) -> Quantity:
    """Return a canonical amount as a quantity: cpu in milli-cores, memory and storage with binary suffixes."""
    if name == "cpu":
        return Quantity(amount, -3)
    binary = any(part in name for part in ("memory", "storage", "hugepages"))
    return Quantity(amount, 0, QuantityFormat.BINARY if binary else QuantityFormat.DECIMAL)


def quantities(amounts: Mapping[str, int]) -> dict[str, str]:
    """Return amounts as the API writes them."""
    return {name: str(quantity(name, amount)) for name, amount in sorted(amounts.items())}


def together(lists: Iterable[Mapping[str, int]]) -> ResourceList:
    """Return the sum of all."""
    total = ResourceList()
    for each in lists:
        for name, amount in each.items():
            total[name] += amount
    return total
