from __future__ import annotations

from dataclasses import replace

from koordpolicy.engine.cel.check.cost import estimate
from koordpolicy.engine.cel.scalar.program import compile as compile_program
from koordpolicy.engine.framework.slots import Slot, environment
from koordpolicy.engine.kubernetes.sizes import ASSUMED_SIZES
from koordpolicy.engine.kubernetes.types import load

FILTER = environment(Slot.FILTER)


def highest(text: str, **sizes: int) -> int:
    scope = replace(FILTER, sizes={**FILTER.sizes, **{tuple(key.split("_")): value for key, value in sizes.items()}})
    return estimate(compile_program(text, scope).checked).high


def test_every_assumed_size_is_that_of_a_field_or_of_what_it_holds() -> None:
    types = load()
    unknown = [key for key in ASSUMED_SIZES if key[0] not in types or key[1] not in types[key[0]].fields]
    assert unknown == []
    held = [
        key for key in ASSUMED_SIZES if len(key) == 3 and types[key[0]].fields[key[1]].type.name not in {"list", "map"}
    ]
    assert held == []


def test_fields_of_the_api_have_sizes_wherever_they_are_reached() -> None:
    assert highest("pod.spec.containers.all(c, true)") == 3 + 2 + 50 * 3
    assert highest("pod.spec.tolerations.all(t, true)") == 3 + 2 + 100 * 3
    assert highest("[pod].all(p, p.spec.containers.all(c, true))") == highest(
        "[pod].all(p, pod.spec.containers.all(c, true))",
    )
    # A label has 63 characters: a comparison with one costs a tenth of them.
    assert highest(
        "pod.metadata.labels.all(k, pod.metadata.labels[k] == pod.metadata.namespace)",
    ) < 5 + 100 * (3 + 10 + 7)


def test_sizes_can_be_overridden_by_path_and_by_type() -> None:
    text = "pod.spec.containers.all(c, true)"
    assert highest(text, pod_spec_containers=10) == 3 + 2 + 10 * 3
    scope = replace(FILTER, sizes={**FILTER.sizes, ("kubernetes.PodSpec", "containers"): 20})
    assert estimate(compile_program(text, scope).checked).high == 3 + 2 + 20 * 3
    assert estimate(compile_program(text, scope).checked, {("pod", "spec", "containers"): 1}).high == 3 + 2 + 3
