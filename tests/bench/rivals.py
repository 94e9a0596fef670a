"""Other engines that run CEL from Python, each behind the same three questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .figure import Missing

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rival:
    """An engine: how it compiles a text, takes plain values over, and evaluates."""

    name: str
    compile: Callable[[str], Any]
    convert: Callable[[Values], Any]
    """Plain values to what `evaluator` takes; what this costs is not part of an evaluation."""
    evaluator: Callable[[Any, Any], Callable[[], Any]]
    """A compiled expression and converted values to a function of nothing that evaluates."""
    plain: Callable[[Any], Any]
    """A result as a plain value."""


def cel_python() -> Rival:
    """Return cel-python, the interpreter written in Python."""
    try:
        import celpy  # noqa: PLC0415 - may not be installed
    except ImportError as error:
        raise Missing(_wanted("cel-python", error)) from None
    environment = celpy.Environment()
    return Rival(
        "cel-python",
        lambda text: environment.program(environment.compile(text)),
        lambda values: {name: celpy.json_to_cel(value) for name, value in values.items()},
        lambda program, values: lambda: program.evaluate(values),
        lambda value: int(value) if type(value).__name__ == "IntType" else bool(value),
    )


def cpp() -> Rival:
    """Return the wrapper of the engine written in C++."""
    try:
        from cel_expr_python import cel  # noqa: PLC0415 - may not be installed
    except ImportError as error:
        raise Missing(_wanted("cel-expr-python", error)) from None
    environment = cel.NewEnv(variables={"pod": cel.Type.DYN, "node": cel.Type.DYN})
    probe = environment.compile("size(pod) + size(node) > 0")

    def convert(values: Values) -> Any:
        activation = environment.Activation(values)
        # It takes a variable over when an expression first reads it, and then keeps it.
        probe.eval(activation)
        return activation

    def evaluator(program: Any, activation: Any) -> Callable[[], Any]:
        evaluate = program.eval
        return lambda: evaluate(activation)

    return Rival(
        "C++ (cel-expr-python)", environment.compile, convert, evaluator, lambda value: value.value(),
    )


def rust() -> Rival:
    """Return the binding of the engine written in Rust."""
    try:
        import cel  # noqa: PLC0415 - may not be installed
    except ImportError as error:
        raise Missing(_wanted("common-expression-language", error)) from None
    trivial = cel.compile("true")

    def convert(values: Values) -> Any:
        context = cel.Context(dict(values))
        # It builds its own form of the values when they are first used.
        trivial.execute(context)
        return context

    def evaluator(program: Any, context: Any) -> Callable[[], Any]:
        execute = program.execute
        return lambda: execute(context)

    return Rival("Rust (common-expression-language)", cel.compile, convert, evaluator, lambda value: value)


RIVALS = (cpp, rust, cel_python)


def _wanted(package: str, error: ImportError) -> str:
    return f"{package} cannot be imported ({error}); `make bench` installs it: pip install -e '.[bench]'"
