"""Evaluation by cel-python, an independent implementation, for comparison.

It implements the core language only. An evaluation takes about a millisecond; that of the code generator takes about a
microsecond. The agreement test lists its known deviations from the specification.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from koordpolicy.engine.source import PolicyError, Problem, Source

from .values.types import BOOL, BYTES, DOUBLE, DURATION, INT, NULL, STRING, TIMESTAMP, UINT, Type
from .values.values import (
    LIST,
    MAP,
    TYPE,
    Duration,
    EvaluationError,
    Timestamp,
    Uint,
    is_map,
    key_of,
    key_value,
    type_of_value,
)

_MICROSECOND: Final = 1_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TYPES: Final = {
    "BoolType": BOOL, "IntType": INT, "UintType": UINT, "DoubleType": DOUBLE, "StringType": STRING, "BytesType": BYTES,
    "ListType": LIST, "MapType": MAP, "TypeType": TYPE, "TimestampType": TIMESTAMP, "DurationType": DURATION,
    "NoneType": NULL,
}


def evaluate(
    text: str, bindings: Mapping[str, object], functions: Mapping[str, Callable[..., object]] | None = None,
) -> object:
    """Return the value of an expression for plain values, as cel-python computes it.

    `functions` take and return plain values. Times are truncated to microseconds. Raises `PolicyError` if it
    cannot parse the text, `EvaluationError` (without a position) if the evaluation fails.
    """
    import celpy  # noqa: PLC0415 - the import takes half a second
    from celpy import celparser, evaluation  # noqa: PLC0415 - as above

    environment = celpy.Environment()
    try:
        tree = environment.compile(text)
    except celparser.CELParseError as error:
        raise PolicyError([_problem(text, error)]) from None
    wrapped: dict[str, Any] = {name: _wrapped(function) for name, function in (functions or {}).items()}
    try:
        program = environment.program(tree, functions=wrapped)
        value = program.evaluate({name: _to_celpy(each) for name, each in bindings.items()})
        return _from_celpy(value)
    except evaluation.CELEvalError as error:
        raise EvaluationError(_message(error)) from None
    except EvaluationError:
        raise
    except Exception as error:
        # Its evaluator lets some of Python's own exceptions through.
        raise EvaluationError(_message(error)) from None


def _message(error: Exception) -> str:
    return str(error.args[0]) if error.args else type(error).__name__


def _problem(text: str, error: Any) -> Problem:
    source = Source("<expression>", text)
    starts = [0, *(position + 1 for position, each in enumerate(text) if each == "\n")]
    line = min(max(error.line or 1, 1), len(starts))
    offset = starts[line - 1] + max((error.column or 1) - 1, 0)
    return Problem("cel-python cannot parse this", source.span(min(offset, len(text))), code="cel-syntax")


def _wrapped(function: Callable[..., object]) -> Callable[..., object]:
    def call(*arguments: object) -> object:
        return _to_celpy(function(*(_from_celpy(each) for each in arguments)))

    return call


def _to_celpy(value: object) -> Any:
    from celpy import celtypes  # noqa: PLC0415 - as above

    kinds: dict[type, Callable[[Any], Any]] = {
        bool: celtypes.BoolType, int: celtypes.IntType, Uint: celtypes.UintType, float: celtypes.DoubleType,
        str: celtypes.StringType, bytes: celtypes.BytesType,
    }
    if value is None:
        return None
    convert = kinds.get(value.__class__)
    if convert is not None:
        return convert(value)
    if type(value) is list:
        return celtypes.ListType([_to_celpy(each) for each in value])
    if is_map(value):
        items = value.items()  # type: ignore[attr-defined]
        return celtypes.MapType({_to_celpy(key_value(key)): _to_celpy(each) for key, each in items})
    if isinstance(value, Timestamp):
        return celtypes.TimestampType(_EPOCH + timedelta(microseconds=value.ns // _MICROSECOND))
    if isinstance(value, Duration):
        return celtypes.DurationType(timedelta(microseconds=value.ns // _MICROSECOND))
    raise EvaluationError(f"cel-python does not know values of type {type_of_value(value)}")


def _from_celpy(value: Any) -> object:
    if value is None:
        return None
    name = type(value).__name__
    match name:
        case "BoolType" | "bool":
            return bool(value)
        case "IntType" | "int":
            return int(value)
        case "UintType":
            return Uint(value)
        case "DoubleType" | "float":
            return float(value)
        case "StringType" | "str":
            return str(value)
        case "BytesType" | "bytes":
            return bytes(value)
        case "ListType" | "list":
            return [_from_celpy(each) for each in value]
        case "MapType" | "dict":
            return {key_of(_from_celpy(key)): _from_celpy(each) for key, each in value.items()}
        case "TimestampType":
            offset = value.utcoffset() or timedelta()
            return Timestamp((value - _EPOCH) // timedelta(microseconds=1) * _MICROSECOND, int(offset.total_seconds()))
        case "DurationType":
            return Duration(value // timedelta(microseconds=1) * _MICROSECOND)
        case _:
            return _type_from_celpy(value)


def _type_from_celpy(value: Any) -> Type:
    name = getattr(value, "__name__", "")
    found = _TYPES.get(name)
    if found is None:
        raise EvaluationError(f"cel-python returned a value of an unknown type: {str(value)[:50]}")
    return found
