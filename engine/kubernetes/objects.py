"""Validation of API objects: every declared field must have its declared type.

The declarations are those that expressions are checked against (`types.load`). The API server rejects objects that
violate them; dumps, tests and custom resources without a schema may contain such objects. Undeclared fields are not
checked.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from koordpolicy.engine.cel.values.types import BOOL, BYTES, DOUBLE, DURATION, DYN, INT, STRING, TIMESTAMP, Field, Type
from koordpolicy.engine.cel.values.values import Duration, EvaluationError

from . import types
from .quantity import Quantity

LARGEST_AMOUNT: Final = 2**56
"""Larger amounts, and sums of amounts, count as this one: 64 PiB, or 72 million million cores.

A hundred times as much, or a sum of a few, still fits 64 bits, so that arithmetic on columns needs no checks.
"""
NANOSECONDS: Final = 1_000_000_000
LATEST: Final = 2**62 - 1
"""ns since the epoch (in 2116): times beyond it, or before its negative (1823), count as it.

Half of what 64 bits hold, so that a difference of two times fits them too.
"""

_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_QUANTITIES: Final = frozenset({
    "allocatable", "allocated", "allocatedResources", "capacity", "limits", "max", "min", "minResources", "overhead",
    "requests", "resources", "used",
})
"""The fields of type map(string, string) whose values are quantities."""
_AMOUNTS: Final = frozenset({
    ("koordinator.TopologyResource", "allocatable"), ("koordinator.TopologyResource", "available"),
    ("koordinator.TopologyResource", "capacity"),
})
"""Fields that hold one quantity, as a string or a number."""
_NUMBERS_OR_TEXTS: Final = frozenset({
    ("kubernetes.PodDisruptionBudgetSpec", "maxUnavailable"), ("kubernetes.PodDisruptionBudgetSpec", "minAvailable"),
})
"""Kubernetes' IntOrString fields that are read."""
_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "kubernetes.PreferredSchedulingTerm": ("preference", "weight"),
    "kubernetes.WeightedPodAffinityTerm": ("podAffinityTerm", "weight"),
}
"""Required fields of their enclosing objects."""

_Check = Callable[[Any], None]
FieldCheck: TypeAlias = tuple[Any, Callable[[Any], None]]
"""The check of a field, and the type whose values need none, except for strings beyond ASCII."""


class MalformedField(ValueError):
    """A field that violates its declaration; the message has its path and the fault."""

    def __init__(self, fault: str) -> None:
        super().__init__(fault)
        self._fault = fault
        self._path = ""

    def at(self, step: str) -> MalformedField:
        """Prepend the field or index (`[3]`) that contains the fault to its path."""
        self._path = step + (f".{self._path}" if self._path and not self._path.startswith("[") else self._path)
        return self

    def __str__(self) -> str:
        return f"`{self._path}`{self._fault}"


def check_object(item: Mapping[str, Any], kind: str) -> None:
    """Check the declared fields of an object of a kind; of a kind without a declaration, its metadata.

    Absent and null fields are no fault. Strings are valid Unicode, integers fit 64 bits, times and durations can be
    parsed, and amounts are quantities from 0 to 2^63-1 (cpu in milli-cores).

    Raises:
        ValueError: a field is not as declared; the message begins with its path.
    """
    _object_check(kind if kind in _KINDS else "")(item)


@functools.cache
def checks_of_parts(kind: str) -> tuple[Callable[[Any], None], Mapping[str, Mapping[str, FieldCheck]]]:
    """Return `check_object` of a kind in parts, for objects whose parts are the same ones again and again.

    An object passes `check_object` if it passes the first check without the fields of its sections (`metadata`,
    `spec` and so on), and each field of a section passes its own; a field without one is not checked, nor is null. The
    checks raise `ValueError`.
    """
    declared = {key: field.type for key, field in (
        types.load()[_KINDS[kind]].fields if kind in _KINDS else {"metadata": Field(Type("kubernetes.ObjectMeta"))}
    ).items()}
    checks: dict[str, _Check] = {}
    sections = {
        key: {name: (_fast_type(field.type), _check_of_field(of.name, name, field.type, checks))
              for name, field in types.load()[of.name].fields.items()}
        for key, of in declared.items() if of.name in types.load() and of.name not in _NEEDED
    }
    return _object_check(kind if kind in _KINDS else ""), sections


def parse_fault(error: Exception) -> str:
    """Return the text of an error of a JSON or YAML parser, for messages.

    For a number with too many digits Python's text names a function of the interpreter, which no user can call.
    """
    if type(error) is ValueError and "integer string conversion" in str(error):
        return f"a number has more than {sys.get_int_max_str_digits()} digits; shorten it, or write it as a string"
    return str(error)


def json_kind(value: object) -> str:
    """Return the JSON type of a value, with its article, for messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an object" if isinstance(value, Mapping) else "a list" if isinstance(value, (list, tuple)) else "no JSON"


@functools.lru_cache(maxsize=16_384)
def nanoseconds(text: str, path: str) -> int:
    """Return an RFC 3339 time in ns since the epoch, from `-LATEST` to `LATEST` (Go's differences saturate likewise).

    Raises:
        ValueError: it is none; the message begins with `path`.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"`{path}`: `{text}` is not a time like 2026-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    difference = moment - _EPOCH
    exact = (difference.days * 86_400 + difference.seconds) * NANOSECONDS + difference.microseconds * 1_000
    return max(-LATEST, min(exact, LATEST))


@functools.cache
def _object_check(kind: str) -> _Check:
    """Return the check of the objects of a kind; with an empty one that of objects of all kinds."""
    checks: dict[str, _Check] = {}
    if not kind:
        return _compiled("", {"metadata": Field(Type("kubernetes.ObjectMeta"))}, checks)
    return _check_of(Type(_KINDS[kind]), checks)


def _compiled(name: str, declared: Mapping[str, Field], checks: dict[str, _Check]) -> _Check:
    """Return the check of an object type; `checks` holds those that exist, as types contain themselves."""
    fields: dict[str, FieldCheck] = {}
    field_of = fields.get
    needed = _NEEDED.get(name, ())

    def check(value: Any) -> None:
        if not isinstance(value, (dict, Mapping)):
            raise MalformedField(f" must be an object, not {json_kind(value)}")
        key = ""
        try:
            for key, each in value.items():
                found = field_of(key)
                if found is None or each is None:
                    continue
                fast, below = found
                if type(each) is fast and (fast is bool or each.isascii()):
                    continue  # most fields
                below(each)
            for key in needed:
                if value.get(key) is None:
                    raise MalformedField(" is missing")  # noqa: TRY301 - the path is added where all others are
        except MalformedField as fault:
            raise fault.at(key) from None

    checks[name] = check
    for key, field in declared.items():
        fields[key] = _fast_type(field.type), _check_of_field(name, key, field.type, checks)
    return check


def _fast_type(of: Type) -> type | None:
    """Return the type of which any value passes the check of a field; of strings, any that is ASCII."""
    return str if of == STRING else bool if of == BOOL else None


def _check_of_field(owner: str, key: str, of: Type, checks: dict[str, _Check]) -> _Check:
    if (owner, key) in _AMOUNTS:
        return functools.partial(_check_amount, False)
    if (owner, key) in _NUMBERS_OR_TEXTS:
        return _check_number_or_text
    if key in _QUANTITIES and of.name == "map" and of.parameters[1] == STRING:
        return _check_amounts
    return _check_of(of, checks)


def _check_of(of: Type, checks: dict[str, _Check]) -> _Check:
    found = _SCALARS.get(of.name) or checks.get(of.name)
    if found is not None:
        return found
    if of.name == "list":
        return functools.partial(_check_list, _check_of(of.parameters[0], checks))
    if of.name == "map":
        return functools.partial(_check_map, _check_of(of.parameters[1], checks))
    return _compiled(of.name, types.load()[of.name].fields, checks)


def _check_list(each_check: _Check, value: Any) -> None:
    if value.__class__ is not list:
        raise MalformedField(f" must be a list, not {json_kind(value)}")
    index = 0
    try:
        for each in value:
            each_check(each)
            index += 1
    except MalformedField as fault:
        raise fault.at(f"[{index}]") from None


def _check_map(each_check: _Check, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise MalformedField(f" must be an object, not {json_kind(value)}")
    key = ""
    try:
        for key, each in value.items():
            _check_text(key)
            each_check(each)
    except MalformedField as fault:
        raise fault.at(key) from None


def _check_amounts(value: Any) -> None:
    if not isinstance(value, Mapping):
        raise MalformedField(f" must be an object, not {json_kind(value)}")
    key = ""
    try:
        for key, each in value.items():
            _check_text(key)
            _check_amount(key == "cpu", each)
    except MalformedField as fault:
        raise fault.at(key) from None


def _check_amount(cpu: bool, value: Any) -> None:
    # The API server takes numbers too and serves them as strings; dumps and tests write them.
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise MalformedField(f" must be a quantity, not {json_kind(value)}")
    fault = _fault_of_amount(cpu, value)
    if fault:
        raise MalformedField(fault)


@functools.lru_cache(maxsize=65_536)
def _fault_of_amount(cpu: bool, text: str) -> str:
    try:
        quantity = Quantity.parse(text)
    except ValueError as error:
        return f": {error}"
    if quantity.sign < 0:
        return f" is `{text}`: it must not be negative"
    amount = quantity.milli if cpu else quantity.value
    return "" if amount <= _INT64_MAX else ": the amount does not fit into 64 bits"


def _check_text(value: Any) -> None:
    if not isinstance(value, str):
        raise MalformedField(f" must be a string, not {json_kind(value)}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise MalformedField(" holds half of a character (a lone surrogate)") from None


def _check_int(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise MalformedField(f" must be a number, not {json_kind(value)}" if not isinstance(value, float)
                        else " must be a whole number")
    if not _INT64_MIN <= value <= _INT64_MAX:
        raise MalformedField(": the number does not fit into 64 bits")


def _check_number(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise MalformedField(f" must be a number, not {json_kind(value)}")


def _check_bool(value: Any) -> None:
    if not isinstance(value, bool):
        raise MalformedField(f" must be true or false, not {json_kind(value)}")


def _check_number_or_text(value: Any) -> None:
    (_check_text if isinstance(value, str) else _check_int)(value)


def _check_time(value: Any) -> None:
    if type(value) is not str or not value.isascii():
        _check_text(value)
    if value:
        try:
            nanoseconds(value, "")
        except ValueError:
            raise MalformedField(f": `{value}` is not a time like 2026-01-31T12:00:00Z") from None


def _check_duration(value: Any) -> None:
    _check_text(value)
    if value:
        try:
            Duration.parse(value)
        except EvaluationError as error:
            raise MalformedField(f": {error.message}") from None


def _check_nothing(_: Any) -> None:
    """Accept any JSON."""


_SCALARS: Final[Mapping[str, _Check]] = {
    STRING.name: _check_text, BYTES.name: _check_text, INT.name: _check_int, BOOL.name: _check_bool,
    DOUBLE.name: _check_number, TIMESTAMP.name: _check_time, DURATION.name: _check_duration, DYN.name: _check_nothing,
}
_KINDS: Final[Mapping[str, str]] = {
    **{kind: f"kubernetes.{kind}" for kind in (
        "CSIDriver", "CSINode", "CSIStorageCapacity", "Namespace", "Node", "PersistentVolume", "PersistentVolumeClaim",
        "Pod", "PodDisruptionBudget", "PriorityClass", "ReplicaSet", "ReplicationController", "Service", "StatefulSet",
        "StorageClass",
    )},
    **{kind: f"koordinator.{kind}" for kind in (
        "Device", "ElasticQuota", "NodeMetric", "NodeResourceTopology", "NodeSLO", "PodGroup", "PodMigrationJob",
        "Reservation",
    )},
}
"""The object type of each kind that is read."""
