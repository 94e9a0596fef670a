from __future__ import annotations

import pytest

from koordpolicy.engine.cel.check.environment import Environment, Function
from koordpolicy.engine.cel.library import (
    BINDINGS,
    ENCODERS,
    LISTS,
    MATH,
    OPTIONALS,
    SETS,
    STANDARD,
    STRINGS,
    STRINGS_V2,
    table,
)
from koordpolicy.engine.cel.scalar.program import compile as compile_program
from koordpolicy.engine.kubernetes.library import KUBERNETES

LIBRARIES = {
    "newest": (STANDARD, BINDINGS, STRINGS, LISTS, MATH, SETS, ENCODERS, OPTIONALS),
    "kubernetes": (STANDARD, BINDINGS, STRINGS_V2, LISTS, MATH, SETS, ENCODERS, OPTIONALS, KUBERNETES),
}
CASES = [
    pytest.param(name, function, id=f"{name}-{function.name}")
    for name, libraries in LIBRARIES.items() for function in table(*libraries).values() if function.example
]


@pytest.mark.parametrize(("library", "function"), CASES)
def test_every_function_has_an_example_that_is_true(library: str, function: Function) -> None:
    environment = Environment(functions=table(*LIBRARIES[library]))
    program = compile_program(function.example, environment)
    assert (program.call(), program.metered({})[0]) == (True, True)


def test_every_function_that_people_call_is_documented() -> None:
    functions = table(*LIBRARIES["newest"], KUBERNETES).values()
    assert [
        each.name for each in functions if not each.name.startswith("@not") and not (each.doc and each.example)
    ] == []
