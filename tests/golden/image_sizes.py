"""The sizes of images that one run of kube-scheduler worked with, found from its scores.

Where nodes report different sizes of an image, kube-scheduler takes that of the node which entered its cache first. At
its start nodes enter in the order of a Go map, so that only its scores show which node that was. All decisions of a
run share the order: `sizes_of_run` finds sizes that explain all recorded scores of ImageLocality and that some order of
the nodes gives, or none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from koordpolicy.builtin_plugins.scheduler.kubernetes.image_locality import PodImages, image_scores

Sizes = Mapping[str, int]
"""The size of each image in bytes."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The scores of one decision: `images` of its pod, `reported` sizes of images by row, and the `scores` of rows."""

    nodes: int
    images: PodImages
    reported: Mapping[str, Mapping[int, int]]
    scores: Mapping[int, int]

    def explanations(self) -> list[dict[str, int]]:
        """Return the sizes of the pod's images that explain the scores; only of images whose nodes disagree."""
        of_containers, of_volumes = self.images
        sizes = {image: set(self.reported.get(image, {}).values()) for image in of_containers + of_volumes}
        disputed = sorted(image for image, each in sizes.items() if len(each) > 1)
        choices = (dict(zip(disputed, chosen, strict=True))
                   for chosen in product(*(sorted(sizes[image]) for image in disputed)))
        return [chosen for chosen in choices if self._is_explained_by(chosen)]

    def _is_explained_by(self, sizes: Sizes) -> bool:
        found = image_scores(self.nodes, self.reported, self.images,
                             lambda image, reported: sizes.get(image, next(iter(reported.values()))))
        return all(found[row] == score for row, score in self.scores.items())


def sizes_of_run(observations: Sequence[Observation], holders: Mapping[str, Mapping[str, int]]) -> Sizes | None:
    """Return sizes that explain all observations and that an order of the nodes gives; None if there are none.

    `holders` has of each image the sizes that nodes report, by the node's name, when the run began.
    """
    choices = sorted((each.explanations() for each in observations), key=len)
    return next((sizes for sizes in _agreeing(choices, {}) if _has_order(sizes, holders)), None)


def _agreeing(choices: Sequence[Sequence[Sizes]], so_far: Sizes) -> Iterator[Sizes]:
    if not choices:
        yield so_far
        return
    for sizes in choices[0]:
        if all(so_far.get(image, size) == size for image, size in sizes.items()):
            yield from _agreeing(choices[1:], {**so_far, **sizes})


def _has_order(sizes: Sizes, holders: Mapping[str, Mapping[str, int]]) -> bool:
    """Return whether the nodes can enter in an order in which the first holder of each image reports its size.

    A node that reports the size of all of its images that no node before it has can always enter next: it takes no
    possibility from the others.
    """
    open_images = set(sizes)
    waiting = {node for image in sizes for node in holders.get(image, ())}
    while waiting:
        entering = {node for node in waiting
                    if all(holders[image].get(node, sizes[image]) == sizes[image] for image in open_images)}
        if not entering:
            return False
        waiting -= entering
        open_images -= {image for image in open_images if entering & holders[image].keys()}
    return not open_images
