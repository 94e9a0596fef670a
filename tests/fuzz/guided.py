"""Search for texts that break the engine by watching which lines they run; needs atheris, started by `__main__`."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["koordpolicy.engine.cel"]):
    from .examination import Case, examine

SEEDS = (
    "pod.spec.containers.all(c, has(c.resources.limits))", "a.b[0] == 'x' && !(1 + 2 > b) ? {'k': [1u, 2.5]} : null",
    "[1, 2].filter(x, x % 2 == 0).map(x, x * -1)", "a.?b.orValue(b'\\x00')", "cel.bind(x, 'a', x + x).matches(r'\\d')",
)


def look(data: bytes) -> None:
    """Examine one text."""
    text = data.decode("utf-8", "surrogateescape")
    examine(Case(text, "plain", [{"a": {"b": [1, "x"]}}] * 2, {"b": 1}))


if __name__ == "__main__":
    atheris.Setup(sys.argv, look)
    atheris.Fuzz()
