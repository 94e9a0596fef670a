"""ImageLocality: nodes that have a pod's images come first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.frame import Rows
from koordpolicy.engine.cluster.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.plugins import CycleState, Handle
from koordpolicy.engine.points import HIGHEST_SCORE, Scores
from koordpolicy.engine.scheduler.args import no_args

_PATHS: Final = frozenset({("node", "status", "images")})
_MEBIBYTE: Final = 1024 * 1024
_LEAST: Final = 23 * _MEBIBYTE
_MOST_PER_CONTAINER: Final = 1000 * _MEBIBYTE
_MOST_SHAPES: Final = 256


class ImageLocality:
    """The scorer (kube-scheduler's plugin of that name).

    An image counts its size times the share of the nodes that have it; 23 MiB in all is 0, and 1000 MiB for each
    container (init containers included) is 100.
    """

    name = "ImageLocality"
    check_args = staticmethod(no_args)

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        pass

    def score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:  # noqa: ARG002
        """Score the nodes."""
        images = tuple(_images_of(pod))
        if snapshot.patched and any(row.node is not snapshot.cluster.rows[index].node
                                    for index, row in snapshot.patched.items()):
            return Scores(_scores(_Images(snapshot), images))
        cluster = snapshot.cluster
        frame = Snapshot(cluster, snapshot.now).frame({})
        stamp = frame.stamp(_PATHS)
        kept = frame.kept.get(self)
        if not isinstance(kept, tuple) or kept[0] != stamp:
            kept = frame.kept[self] = (stamp, _Images(Snapshot(cluster, snapshot.now)), {})
        _, held, by_shape = kept
        values = by_shape.get(images)
        if values is None:
            if len(by_shape) >= _MOST_SHAPES:
                by_shape.clear()
            values = by_shape[images] = _scores(held, images)
        return Scores(values)


class _Images:
    """Which nodes have which image, and how large it is there."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.nodes = snapshot.size
        self.sizes: dict[str, dict[int, int]] = {}
        for row in range(snapshot.size):
            for image in (snapshot.node(row).get("status") or {}).get("images") or ():
                size = image.get("sizeBytes")
                for name in image.get("names") or ():
                    self.sizes.setdefault(name, {})[row] = size if isinstance(size, int) else 0


def _scores(held: _Images, images: tuple[str, ...]) -> NDArray[np.int64]:
    sums: NDArray[np.int64] = np.zeros(held.nodes, np.int64)
    for name in images:
        sizes = held.sizes.get(name)
        if sizes:
            rows = np.fromiter(sizes.keys(), np.intp, len(sizes))
            amounts = np.fromiter(sizes.values(), np.float64, len(sizes))
            sums[rows] += (amounts * (len(sizes) / held.nodes)).astype(np.int64)
    most = _MOST_PER_CONTAINER * len(images)
    found: NDArray[np.int64] = HIGHEST_SCORE * (np.clip(sums, _LEAST, most) - _LEAST) // (most - _LEAST)
    found.flags.writeable = False
    return found


def _images_of(pod: PodInfo) -> Iterator[str]:
    spec = pod.object.get("spec") or {}
    for kind in ("initContainers", "containers"):
        for container in spec.get(kind) or ():
            name = container.get("image") or ""
            # An image without a tag is its latest; a colon before the last slash is a registry's port.
            yield name if name.rfind(":") > name.rfind("/") else f"{name}:latest"
