"""Changed params of documents, for the axes `params.NAME` and `params.DOCUMENT.NAME`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from koordpolicy.engine.documents import Document, ParamsSpec, PluginSpec
from koordpolicy.engine.source import did_you_mean
from koordpolicy.engine.texts import quoted_list

from .axes import Point, Value

PREFIX: Final = "params."


def params_of(point: Point) -> dict[str, Value]:
    """Return the params of a point, by the name without its prefix."""
    return {name.removeprefix(PREFIX): value for name, value in point.items() if name.startswith(PREFIX)}


def vary(documents: Sequence[Document], values: Mapping[str, Value]) -> tuple[Document, ...]:
    """Return the documents with these params in place of their own.

    `NAME` changes every document that has such a param, `DOCUMENT.NAME` that document; `NAME.FIELD` reaches into a
    param that is an object. Referenced params are changed in their PolicyParams.

    Raises: ValueError: no document has such a param, or it is a number there and the value is not.
    """
    changed = list(documents)
    for path, value in values.items():
        steps = path.split(".")
        hit = False
        for index, document in enumerate(changed):
            for own in _ways(document, steps):
                spec = document.spec
                assert isinstance(spec, PluginSpec | ParamsSpec)
                _check_kind(path, _at(spec.params, own), value)
                params = _set(spec.params, own, value)
                digest = hashlib.sha256(f"{document.digest} {path} {json.dumps(value)}".encode()).hexdigest()
                changed[index] = replace(document, spec=replace(spec, params=params), digest=digest)
                hit = True
        if not hit:
            known = sorted({name for document in documents for name in _declared(document)})
            hint = did_you_mean(steps[-1], known) or (
                f"there are {quoted_list(known)}" if known else "they have none")
            raise ValueError(f"no policy has the param `{path}`: {hint}")
    return tuple(changed)


def _ways(document: Document, steps: Sequence[str]) -> Iterable[Sequence[str]]:
    """Return the path below the document's params that the steps name there, if they do."""
    if _has(document, steps):
        return (steps,)
    # Names of documents may contain dots.
    for end in range(len(steps) - 1, 0, -1):
        if ".".join(steps[:end]) == document.name and _has(document, steps[end:]):
            return (steps[end:],)
    return ()


def _has(document: Document, steps: Sequence[str]) -> bool:
    spec = document.spec
    if not isinstance(spec, PluginSpec | ParamsSpec):
        return False
    if len(steps) == 1 and steps[0] in _declared(document):
        return True
    at: Any = spec.params
    for step in steps:
        if not isinstance(at, Mapping) or step not in at:
            return False
        at = at[step]
    return True


def _declared(document: Document) -> frozenset[str]:
    spec = document.spec
    if not isinstance(spec, PluginSpec | ParamsSpec):
        return frozenset()
    schema = spec.params_schema if isinstance(spec.params_schema, Mapping) else {}
    return frozenset(spec.params) | frozenset(schema.get("properties", {}))


def _at(params: Any, steps: Sequence[str]) -> Any:
    for step in steps:
        if not isinstance(params, Mapping) or step not in params:
            return None
        params = params[step]
    return params


def _check_kind(path: str, before: object, value: Value) -> None:
    """Raise `ValueError` for a string in place of a number, which would be reported as a fault of an expression."""
    numbers = isinstance(before, int | float) and not isinstance(before, bool)
    if numbers and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"`{path}` is {before} in the policies, and `{value}` is not a number")


def _set(params: Mapping[str, Any], steps: Sequence[str], value: Value) -> dict[str, Any]:
    first, *rest = steps
    return {**params, first: _set(params[first], rest, value) if rest else value}
