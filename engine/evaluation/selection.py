"""Selection of the nodes that a document's `match` accepts, before any of its expressions runs."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.check.checked_ast import Path
from koordpolicy.engine.cluster.derived import Derived
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.documents import NodeMatch
from koordpolicy.engine.kubernetes.metadata import labels_of

NODE_PATHS: Final[frozenset[Path]] = frozenset((("node", "metadata", "labels"), ("node", "metadata", "name")))
"""The paths that `match.nodes` reads."""
_MATCHES: Final = Derived(NODE_PATHS, np.bool_)


def node_mask(match: NodeMatch | None, digest: str, snapshot: Snapshot) -> NDArray[np.bool_] | None:
    """Return which nodes a document matches (read-only), or None for all.

    Cached under the document's digest.
    """
    if match is None:
        return None
    return _MATCHES.of(snapshot, digest, lambda view, row: _accepts(match, view.node(row)))


def _accepts(match: NodeMatch, node: Any) -> bool:
    return match.accepts(node["metadata"]["name"], labels_of(node))
