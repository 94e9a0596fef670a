from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.builtin_plugins.scheduler.kubernetes.image_locality import image_scores

from .image_sizes import Observation, sizes_of_run

MEBIBYTE = 1024 * 1024
NODES = ("n0", "n1", "n2", "n3")


def observed(order, holders, images):
    """The scores of a pod with these images, by a scheduler whose cache the nodes entered in this order."""
    reported = {image: {NODES.index(name): size for name, size in sizes.items()} for image, sizes in holders.items()}
    first = {image: sizes[next(name for name in order if name in sizes)] for image, sizes in holders.items()}
    scores = image_scores(len(NODES), reported, (images, ()), lambda image, _: first[image])
    return Observation(len(NODES), (images, ()), reported, dict(enumerate(scores.tolist())))


def test_the_size_of_the_node_that_entered_first_is_found():
    holders = {"a": {"n0": 100 * MEBIBYTE, "n1": 900 * MEBIBYTE}}
    for order in permutations(NODES):
        first = next(name for name in order if name in ("n0", "n1"))
        assert sizes_of_run([observed(order, holders, ("a",))], holders) == {"a": holders["a"][first]}


def test_images_that_all_nodes_report_alike_are_not_named():
    holders = {"a": {"n0": 100 * MEBIBYTE, "n1": 100 * MEBIBYTE}}
    assert sizes_of_run([observed(NODES, holders, ("a",))], holders) == {}


def test_scores_of_two_orders_are_not_explained():
    holders = {"a": {"n0": 100 * MEBIBYTE, "n1": 900 * MEBIBYTE}}
    both = [observed(order, holders, ("a",)) for order in (NODES, NODES[::-1])]
    assert sizes_of_run(both, holders) is None


def test_sizes_that_no_order_of_nodes_gives_explain_nothing():
    # Each image is of the size that the node reports which holds the other image in another size.
    holders = {"a": {"n0": 100 * MEBIBYTE, "n1": 900 * MEBIBYTE}, "b": {"n0": 900 * MEBIBYTE, "n1": 100 * MEBIBYTE}}
    one = observed(("n0", "n1"), holders, ("a",))
    other = observed(("n1", "n0"), holders, ("b",))
    assert sizes_of_run([one], holders) == {"a": 100 * MEBIBYTE}
    assert sizes_of_run([other], holders) == {"b": 100 * MEBIBYTE}
    assert sizes_of_run([one, other], holders) is None


@given(st.permutations(NODES), st.fixed_dictionaries(
    {image: st.dictionaries(st.sampled_from(NODES), st.integers(30, 2000).map(lambda size: size * MEBIBYTE), min_size=1)
     for image in "abc"}))
def test_what_a_run_did_is_always_explained(order, holders):
    pods = [("a",), ("b", "c"), ("a", "b", "c")]
    observations = [observed(order, holders, images) for images in pods]
    sizes = sizes_of_run(observations, holders)
    assert sizes is not None
    for images, observation in zip(pods, observations, strict=True):
        found = image_scores(len(NODES), observation.reported, (images, ()),
                             lambda image, reported: sizes.get(image, next(iter(reported.values()))))
        assert dict(enumerate(found.tolist())) == observation.scores
