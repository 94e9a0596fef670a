"""Columns over the nodes that the cluster maintains: amounts, and devices. They are written row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Numbers

from .objects.node_rows import FREE_DEVICES, NodeRow

__all__ = ["AmountColumn", "Booleans", "DeviceColumns", "Devices", "Integers"]

Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]


class AmountColumn:
    """A maintained column of amounts, with bounds of all values it ever had, so that they need not be computed."""

    __slots__ = ("_numbers", "high", "low", "values")

    def __init__(self, amounts: Sequence[int]) -> None:
        self.values: Integers = np.array(amounts, dtype=np.int64)
        self.low = min(amounts, default=0)
        self.high = max(amounts, default=0)
        self._numbers = Numbers(self.values, None, (self.low, self.high))

    def write(self, row: int, amount: int) -> None:
        """Rewrite one row."""
        self.values[row] = amount
        if self.low <= amount <= self.high:
            return
        self.low, self.high = min(self.low, amount), max(self.high, amount)
        self._numbers = Numbers(self.values, None, (self.low, self.high))

    @property
    def numbers(self) -> Numbers:
        """The column for frames."""
        return self._numbers


class DeviceColumns:
    """The maintained device columns of the cluster; written row by row."""

    def __init__(self, rows: Sequence[NodeRow]) -> None:
        width = max((len(row.total) for row in rows), default=0)
        # Device by device: operations on all nodes run along them.
        self.free: Integers = np.zeros((len(rows), width), dtype=np.int64, order="F")
        self.total: Integers = np.zeros((len(rows), width), dtype=np.int64, order="F")
        self.count: Integers = np.zeros(len(rows), dtype=np.int64)
        self.most: Integers = np.zeros(len(rows), dtype=np.int64)
        self.facts: dict[str, AmountColumn] = {}
        """The columns of `nodeInfo` of free devices, built at their first read."""
        self.model: NDArray[np.int32] = np.zeros(len(rows), dtype=np.int32)
        self.models: list[str] = [""]
        for index, row in enumerate(rows):
            if row.total:
                self.write(index, row)

    def write(self, index: int, row: NodeRow) -> None:
        """Rewrite one row whose number of devices fits the width."""
        self.free[index, len(row.free):] = 0
        self.write_free(index, row)
        self.total[index, : len(row.total)] = row.total
        self.total[index, len(row.total):] = 0
        self.count[index] = sum(1 for total in row.total if total)
        if row.model not in self.models:
            self.models.append(row.model)
        self.model[index] = self.models.index(row.model)

    def write_free(self, index: int, row: NodeRow) -> None:
        """Rewrite the free devices of one row."""
        free = row.free
        self.free[index, : len(free)] = free
        self.most[index] = max(free, default=0)
        for name, column in self.facts.items():
            column.write(index, FREE_DEVICES[name](row))

    def fact(self, name: str, rows: Sequence[NodeRow]) -> AmountColumn:
        """Return the column of one of `FREE_DEVICES`; `rows` are all of them."""
        column = self.facts.get(name)
        if column is None:
            amount = FREE_DEVICES[name]
            column = self.facts[name] = AmountColumn([amount(row) for row in rows])
        return column

    def copy(self) -> DeviceColumns:
        """Return an independent copy."""
        twin = DeviceColumns.__new__(DeviceColumns)
        twin.free, twin.total, twin.count = self.free.copy(), self.total.copy(), self.count.copy()
        twin.model, twin.models = self.model.copy(), list(self.models)
        twin.most, twin.facts = self.most.copy(), {}
        return twin


class Devices:
    """The devices (GPUs) of all nodes: `free` and `total` are int64[nodes, D] in thousandths, 0 if there is none.

    `count` is int64[nodes], as is `most`, the largest of `free`; `model` holds per node an index into `models`, whose
    first entry is the empty string.
    """

    __slots__ = ("_overridden", "_rows", "count", "free", "model", "models", "most", "total")

    def __init__(self, rows: Sequence[NodeRow], overridden: Mapping[int, NodeRow], columns: DeviceColumns) -> None:
        # A method of the snapshot, which holds this, would make a cycle that only the garbage collector frees.
        self._rows = rows
        self._overridden = overridden
        self.free = columns.free
        self.total = columns.total
        self.count = columns.count
        self.most = columns.most
        self.model = columns.model
        self.models: Sequence[str] = columns.models

    def of(self, row: int) -> list[dict[str, Any]]:
        """Return the devices of one node as expressions see them: `{type, minor, total, free, model}`."""
        return (self._overridden.get(row) or self._rows[row]).devices()
