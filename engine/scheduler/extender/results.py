"""ExtenderFilterResult and HostPriorityList, as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from .blocks import BLOCK

HIGHEST_PRIORITY: Final = 10
"""The protocol's MaxExtenderPriority."""
Texts: TypeAlias = NDArray[np.object_]
"""JSON texts as bytes, which are gathered by row."""

_FIRST_HOST: Final = b'[{"Host":'
_NEXT_HOST: Final = np.array([b',"Score":%d},{"Host":' % each for each in range(HIGHEST_PRIORITY + 1)], np.object_)
_LAST_SCORE: Final = b',"Score":%d}]'


def json_text(text: str) -> bytes:
    """Return a text as JSON."""
    return json.dumps(text).encode()


def filter_result(
    nodes: list[bytes] | None, names: Iterable[bytes], failed: Sequence[bytes] = (),
    unresolvable: Sequence[bytes] = (), error: str = "",
) -> list[bytes]:
    """Return ExtenderFilterResult of parts in JSON; those of the maps are pieces of `"name":"message",`."""
    begin = b'{"Nodes":null' if nodes is None else b"]}"
    rest = b"".join((
        begin, b',"NodeNames":', *names, b',"FailedNodes":{', *failed[:-1],
        b'},"FailedAndUnresolvableNodes":{', *unresolvable[:-1], b'},"Error":', json_text(error), b"}"))
    return [rest] if nodes is None else [b'{"Nodes":{"metadata":{},"items":[', *nodes, rest]


def in_blocks(items: Iterable[msgspec.Raw]) -> list[bytes]:
    """Return JSON values with commas between them, in parts of about a block."""
    parts: list[bytes] = []
    some: list[bytes | msgspec.Raw] = []
    size = 0
    for item in items:
        some.append(item)
        size += len(memoryview(item))
        if size > BLOCK:
            parts.append(b",".join(some))
            some, size = [b""], 0  # the next part begins with a comma
    if len(some) > 1 or (some and not parts):
        parts.append(b",".join(some))
    return parts


def host_priorities(names: Texts, priorities: NDArray[np.int64]) -> bytes:
    """Return HostPriorityList of nodes with their priorities; the names are JSON already."""
    if not len(names):
        return b"[]"
    # Each name but the first follows the priority before it: so there are two pieces per node, both there already.
    pieces = np.empty(2 * len(names) + 1, np.object_)
    pieces[0] = _FIRST_HOST
    pieces[1::2] = names
    pieces[2::2] = _NEXT_HOST[priorities]
    pieces[-1] = _LAST_SCORE % priorities[-1]
    return b"".join(pieces.tolist())
