"""The heat map: a cell per node, at the same position for each resource and time, coloured by the share in use."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from .charts import shortened
from .page import data

SHADES: Final = 10
"""The number of shades, without the one for empty nodes."""

_WIDTH: Final = 1120
_LABELS: Final = 215
_BETWEEN: Final = 22
_HEAD: Final = 26
_LINE: Final = 15
_MOST_KINDS: Final = 30
_STEPS: Final = ((150, 15), (400, 11), (2500, 7), (8000, 5))
"""The distance between cells, by the number of nodes up to which it applies."""
_SMALLEST: Final = 3


@dataclass(frozen=True, slots=True)
class ResourceColumn:
    """A column of the map: its name, and the display unit with its size in base units."""

    name: str
    unit: str
    base: int


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Nodes of one size: the label, and the capacity by resource (0 for none)."""

    label: str
    capacity: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NodeUse:
    """A node: the used amounts by time and resource, in base units."""

    name: str
    kind: NodeKind
    used: tuple[tuple[int, ...], ...]


def heat_maps(nodes: Sequence[NodeUse], resources: Sequence[ResourceColumn], moments: Sequence[str]) -> str:
    """Return the maps of at most three times; the last one is shown first.

    The page switches between them without a script; on paper all are shown.
    """
    blocks = _blocks(nodes)
    layout = _Layout(blocks, len(resources), len(nodes))
    tabs = "".join(
        f'<input type="radio" name="moment" id="moment-{number}"{" checked" if number == len(moments) - 1 else ""}>'
        f'<label for="moment-{number}">{escape(moment)}</label>'
        for number, moment in enumerate(moments)
    )
    figures = "".join(
        f'<figure class="shown-{number}"><figcaption>{escape(moment)}</figcaption>'
        f'<div class="wide">{_map(layout, resources, number, moment)}</div></figure>'
        for number, moment in enumerate(moments)
    )
    return f'<div class="moments">{tabs}{figures}</div>{_scale()}{data("nodes", _content(layout, resources))}'


@dataclass(frozen=True, slots=True)
class _Block:
    label: str
    nodes: Sequence[NodeUse]


def _blocks(nodes: Sequence[NodeUse]) -> list[_Block]:
    """Return the nodes by kind, in their order; if there are very many kinds, the smallest are combined at the end."""
    kinds: dict[NodeKind, list[NodeUse]] = {}
    for node in nodes:
        kinds.setdefault(node.kind, []).append(node)
    small: set[NodeKind] = set()
    if len(kinds) > _MOST_KINDS:
        small = set(sorted(kinds, key=lambda kind: -len(kinds[kind]))[_MOST_KINDS - 1:])
    blocks = [_Block(kind.label, found) for kind, found in kinds.items() if kind not in small]
    if small:
        rest = [node for kind, found in kinds.items() if kind in small for node in found]
        blocks.append(_Block(f"{len(small)} other sizes", rest))
    return blocks


class _Layout:
    """The position of each block of cells."""

    def __init__(self, blocks: Sequence[_Block], resources: int, count: int) -> None:
        self.blocks = blocks
        self.step = next((step for most, step in _STEPS if count <= most), _SMALLEST)
        width = (_WIDTH - _LABELS - _BETWEEN * (resources - 1)) / max(1, resources)
        self.columns = max(1, int(width // self.step))
        self.lefts = [round(_LABELS + number * (width + _BETWEEN)) for number in range(resources)]
        self.tops = []
        top = _HEAD + 6
        for block in blocks:
            self.tops.append(top)
            rows = math.ceil(len(block.nodes) / self.columns)
            top += max(rows * self.step, 2 * _LINE) + 9
        self.height = top


def _map(layout: _Layout, resources: Sequence[ResourceColumn], moment: int, title: str) -> str:
    side = layout.step - 1
    parts = []
    for column, (resource, left) in enumerate(zip(resources, layout.lefts, strict=True)):
        shades: dict[str, list[str]] = {}
        used = available = 0
        for block, top in zip(layout.blocks, layout.tops, strict=True):
            for number, node in enumerate(block.nodes):
                amount, capacity = node.used[moment][column], node.kind.capacity[column]
                used, available = used + amount, available + capacity
                x = left + number % layout.columns * layout.step
                y = top + number // layout.columns * layout.step
                shades.setdefault(_shade(amount, capacity), []).append(f"M{x} {y}h{side}v{side}h-{side}z")
        share = f"{100 * used / available:.1f} %" if available else "none"
        parts.append(f'<text class="head" x="{left}" y="14">{escape(resource.name)}: {share}</text>')
        parts += [f'<path class="{shade}" d="{"".join(cells)}"/>' for shade, cells in sorted(shades.items())]
    for block, top in zip(layout.blocks, layout.tops, strict=True):
        count = f"{len(block.nodes):,} node{'s' if len(block.nodes) != 1 else ''}"
        parts.append(f'<text class="kind" x="0" y="{top + 11}">{escape(shortened(block.label, 34))}</text>'
                     f'<text x="0" y="{top + 11 + _LINE}">{count}</text>')
    named = escape(f"share in use by node, {title}")
    return (f'<svg class="map" viewBox="0 0 {_WIDTH} {layout.height}" role="img" data-nodes="nodes" '
            f'data-moment="{moment}" aria-label="{named}">{"".join(parts)}</svg>')


def _shade(amount: int, capacity: int) -> str:
    if not capacity:
        return "none"
    return f"v{min(SHADES, math.ceil(SHADES * amount / capacity))}"


def _scale() -> str:
    cells = "".join(f'<rect class="v{shade}" x="{shade * 20}" width="19" height="12"/>' for shade in range(SHADES + 1))
    return ('<p class="scale">empty <svg viewBox="0 0 219 12" role="img" aria-label="from empty to full">'
            f'{cells}</svg> full, in tenths; <svg viewBox="0 0 19 12" style="width:1.1rem" aria-hidden="true">'
            '<rect class="none" x=".5" y=".5" width="18" height="11"/></svg> has none of it</p>')


def _content(layout: _Layout, resources: Sequence[ResourceColumn]) -> Mapping[str, Any]:
    kinds: dict[NodeKind, int] = {}
    nodes: list[list[Any]] = []
    blocks = []
    for block, top in zip(layout.blocks, layout.tops, strict=True):
        blocks += [[left, top, layout.columns, len(nodes), len(block.nodes)] for left in layout.lefts]
        nodes += [[node.name, kinds.setdefault(node.kind, len(kinds)), *node.used] for node in block.nodes]
    return {
        "step": layout.step, "blocks": blocks, "nodes": nodes,
        "kinds": [[kind.label, kind.capacity] for kind in kinds],
        "resources": [[each.name, each.unit, each.base] for each in resources],
    }
