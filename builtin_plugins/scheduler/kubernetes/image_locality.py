"""ImageLocality: prefers nodes that have a pod's images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.derived import DerivedState
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import HIGHEST_SCORE, CacheKey, Point, Scores
from koordpolicy.engine.kubernetes.release import BehaviourChange
from koordpolicy.plugin import CycleState, Handle

from ..allocation.strict_args import read_args, text

_PATHS: Final = frozenset({("node", "status", "images")})
_MEBIBYTE: Final = 1024 * 1024
_LEAST: Final = 23 * _MEBIBYTE
_MOST_PER_CONTAINER: Final = 1000 * _MEBIBYTE
_MOST_SHAPES: Final = 256
_FIRST_NODE: Final = "FirstNode"
PodImages = tuple[tuple[str, ...], tuple[str, ...]]
"""The images of a pod's containers, and of its volumes."""
OneSize = Callable[[str, Mapping[int, int]], int]
"""Returns the size in bytes of an image that counts for all nodes, from its sizes on the rows of those that have it."""
_SIZES: Final = (_FIRST_NODE, "EachNode")


def first_size(_image: str, sizes: Mapping[int, int]) -> int:
    """Return the size of an image on the first row that has it. Rows are in the order of the nodes' names."""
    return sizes[min(sizes)]


class ImageLocality:
    """The scorer (kube-scheduler's plugin of that name).

    An image counts its size times the share of the nodes that have it; 23 MiB in all is 0, and 1000 MiB for each
    container (init containers included) is 100. Since Kubernetes 1.36 the images of image volumes count, too.

    Argument: `sizes` selects the size of an image if nodes report different ones. `FirstNode`, the default, is
    that of the first node by name that has it. kube-scheduler uses one size for all nodes too, that of the node through
    which the image entered its cache; at its start nodes enter in no fixed order (the reflector's WatchList replays
    them from a Go map), so that its scores may change with a restart, and these do not. With `EachNode` each node
    scores by its own.
    """

    name = "ImageLocality"

    def __init__(self, args: Mapping[str, Any], handle: Handle, *, one_size: OneSize = first_size) -> None:
        """`one_size` returns the size of an image that counts for all nodes, under `FirstNode`."""
        self._volumes = BehaviourChange.IMAGE_VOLUMES.is_in(handle.kubernetes)
        self._one_size = one_size if args.get("sizes", _FIRST_NODE) == _FIRST_NODE else None
        self._images = DerivedState(_PATHS, _Images)

    @staticmethod
    def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return arguments with their defaults; raises `ValueError` with the fault and the field's path."""
        sizes = read_args(args, "ImageLocalityArgs", {"sizes": text}).get("sizes") or _FIRST_NODE
        if sizes not in _SIZES:
            raise ValueError(f"`sizes` is `{sizes}`: choose one of {', '.join(_SIZES)}")
        return {"sizes": sizes}

    def score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:
        """Score the nodes."""
        images = self._images_of(pod)
        held = self._images.of(snapshot)
        values = held.scores.get(images)
        if values is None:
            if len(held.scores) >= _MOST_SHAPES:
                held.scores.clear()
            values = held.scores[images] = image_scores(held.nodes, held.sizes, images, self._one_size)
        return Scores(values)

    def _images_of(self, pod: PodInfo) -> PodImages:
        return images_of(pod, volumes=self._volumes)

    def cache_key(self, point: Point, pod: PodInfo, snapshot: Snapshot) -> CacheKey:
        """Return the dependencies of the scores: the pod's images, and the images on all nodes."""
        return CacheKey(self._images_of(pod), frozenset(), _cluster_wide, stable_for_shape=True)


def _cluster_wide(snapshot: Snapshot) -> int:
    return snapshot.cluster.stamp(_PATHS)


class _Images:
    """The images and their sizes by node, and the scores that follow for the images of pods."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.sizes: dict[str, dict[int, int]] = {}
        self.scores: dict[PodImages, NDArray[np.int64]] = {}
        self._names: list[tuple[str, ...]] = [()] * nodes

    def copy(self) -> _Images:
        """Return images that can be refreshed without these changing."""
        twin = _Images(self.nodes)
        twin.sizes, twin._names = {name: dict(sizes) for name, sizes in self.sizes.items()}, list(self._names)
        return twin

    def refresh(self, snapshot: Snapshot, rows: Rows) -> None:
        """Read the images of some nodes."""
        self.scores.clear()
        for row in rows.tolist():
            for name in self._names[row]:
                del self.sizes[name][row]
            found: dict[str, int] = {}
            for image in (snapshot.node(row).get("status") or {}).get("images") or ():
                size = image.get("sizeBytes")
                for name in image.get("names") or ():
                    found.setdefault(name, size if isinstance(size, int) else 0)
            for name, size in found.items():
                self.sizes.setdefault(name, {})[row] = size
            self._names[row] = tuple(found)


def images_of(pod: PodInfo, *, volumes: bool) -> PodImages:
    """Return a pod's images, with those of image volumes if `volumes`; an image without a tag is its `latest`."""
    return tuple(_of_containers(pod)), tuple(_of_volumes(pod)) if volumes else ()


def image_scores(
    nodes: int, sizes: Mapping[str, Mapping[int, int]], images: PodImages, one_size: OneSize | None,
) -> NDArray[np.int64]:
    """Return the scores of all rows, 0 to 100.

    `sizes` has of each image its sizes in bytes on the rows of the nodes that have it. `one_size` returns the size that
    counts for all nodes; with None each node counts its own.
    """
    sums: NDArray[np.int64] = np.zeros(nodes, np.int64)
    of_containers, of_volumes = images
    for name in (*of_containers, *of_volumes):
        found = sizes.get(name)
        if found:
            rows = np.fromiter(found.keys(), np.intp, len(found))
            share = len(found) / nodes
            if one_size is not None:
                sums[rows] += int(one_size(name, found) * share)
            else:
                amounts = np.fromiter(found.values(), np.float64, len(found))
                sums[rows] += (amounts * share).astype(np.int64)
    most = _MOST_PER_CONTAINER * len(of_containers)
    scores: NDArray[np.int64] = HIGHEST_SCORE * (np.clip(sums, _LEAST, most) - _LEAST) // (most - _LEAST)
    scores.flags.writeable = False
    return scores


def _of_containers(pod: PodInfo) -> Iterator[str]:
    spec = pod.object.get("spec") or {}
    for kind in ("initContainers", "containers"):
        for container in spec.get(kind) or ():
            yield _with_tag(container.get("image") or "")


def _of_volumes(pod: PodInfo) -> Iterator[str]:
    for volume in (pod.object.get("spec") or {}).get("volumes") or ():
        image = volume.get("image")
        if image is not None:
            yield _with_tag(image.get("reference") or "")


def _with_tag(name: str) -> str:
    # An image without a tag is its latest; a colon before the last slash is a registry's port.
    return name if name.rfind(":") > name.rfind("/") else f"{name}:latest"
