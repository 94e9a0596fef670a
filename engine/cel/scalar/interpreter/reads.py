"""Reads of fields and elements, tests of presence, and their cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...check.checked_ast import DefinitionReference, LocalReference, VariableReference
from ...syntax import ast
from ...syntax.ast import Expr
from ...values.values import NONE, EvaluationError, Optional, find, index, is_map, place_in_list, text_of
from ..evaluation import Evaluation, Step
from ..reading import Reader, reader
from .builder import StepBuilder

_MISSING: Final = object()


def field(builder: StepBuilder, node: ast.Select) -> Step:
    """Return the step that selects a field, plain (`.`) or as an optional (`.?`)."""
    operand = builder.build(node.operand)
    name, position, optional = node.field, node.position, node.optional
    inner = builder.types[node.operand.id]
    if inner.name == "optional_type" and inner.parameters:
        inner = inner.parameters[0]
    declared = builder.environment.types.get(inner.name)
    absent = declared.absent if declared is not None else None
    read = _reader(builder, node, node.operand, optional=optional)
    lenient = builder.environment.has_on_scalars

    def value_of(container: object, *, inside: bool) -> object:
        """Return the field, or `_MISSING`; `inside` says that `container` was the value of an optional."""
        if type(container) is dict or isinstance(container, Mapping):
            value = container.get(name, _MISSING)
            if value is None and declared is not None:
                value = _MISSING
            if value is _MISSING:
                return _MISSING if absent is None else absent
            return value if read is None else read(value)
        if type(container) is list:
            raise EvaluationError("unsupported index type 'string' in list")
        if container is None and declared is not None:
            return _MISSING
        if lenient and (optional or inside):
            return _MISSING
        raise EvaluationError(f"no such key: {name}")

    base = base_cost(node.operand)

    def select(evaluation: Evaluation) -> object:
        try:
            container = operand(evaluation)
        finally:
            evaluation.cost += base
        inside = container.__class__ is Optional
        if inside:
            if container is NONE:
                return NONE
            container = container.value  # type: ignore[attr-defined]
        try:
            value = value_of(container, inside=inside)
        except EvaluationError as error:
            raise error.at(position) from None
        if optional or inside:
            if value is _MISSING:
                return NONE
            evaluation.cost += 1
            return Optional(value)
        evaluation.cost += 1
        if value is _MISSING:
            raise EvaluationError(f"no such key: {name}", offset=position)
        return value

    return select


def _reader(builder: StepBuilder, node: Expr, operand: Expr, *, optional: bool) -> Reader | None:
    """Return the reader of what a node reads of its operand: of the value in the optional, if it makes one."""
    of = builder.types[node.id]
    if of.name == "optional_type" and of.parameters and (optional or builder.is_optional(operand)):
        of = of.parameters[0]
    return reader(of, builder.environment)


def presence(builder: StepBuilder, node: ast.Select) -> Step:
    """Return the step of `has()`."""
    operand = builder.build(node.operand)
    name, position = node.field, node.position
    declared = builder.declared_object(node.operand) is not None
    lenient = builder.environment.has_on_scalars
    base = base_cost(node.operand)

    def test(evaluation: Evaluation) -> object:
        try:
            container = operand(evaluation)
        except EvaluationError:
            evaluation.cost += base - 1  # the chain's own unit, which a test does not cost
            raise
        evaluation.cost += base
        if type(container) is Optional:
            if container is NONE:
                return False
            container = container.value
        if type(container) is dict or isinstance(container, Mapping):
            try:
                value = container.get(name, _MISSING)
            except EvaluationError as error:
                raise error.at(position) from None
            return value is not _MISSING and not (declared and value is None)
        if type(container) is list:
            raise EvaluationError("unsupported index type 'string' in list", offset=position)
        if lenient or (container is None and declared):
            return False
        raise EvaluationError(f"invalid type for field selection: {text_of(container)}", offset=position)

    return test


def element(builder: StepBuilder, node: ast.Call, *, optional: bool) -> Step:
    """Return the step that reads an element by index or key, plain (`[]`) or as an optional (`[?]`)."""
    operand, key_step = (builder.build(each) for each in node.args)
    position = node.position
    declared = builder.declared_object(node.args[0])
    absent = declared.absent if declared is not None else None
    read = _reader(builder, node, node.args[0], optional=optional)
    lenient = builder.environment.has_on_scalars

    def value_of(container: object, key: object) -> object:
        if declared is not None:
            value = find(container, key, _MISSING) if is_map(container) else _MISSING  # type: ignore[arg-type]
            if value is None or value is _MISSING:
                if absent is not None:
                    return absent
                raise EvaluationError(f"no such key: {text_of(key)}")
        else:
            value = index(container, key)
        return value if read is None else read(value)

    def softly(container: object, key: object) -> object:
        """Return the element as an optional: only an absent one is none, other errors remain errors."""
        if type(container) is list:
            if not 0 <= place_in_list(key) < len(container):
                return NONE
        elif is_map(container):
            if find(container, key, _MISSING) is _MISSING:  # type: ignore[arg-type]
                return NONE
        elif lenient and (container is not None or declared is None):
            return NONE
        return Optional(value_of(container, key))

    # cel-go resolves a key that is read as part of the step, and does not charge its variable.
    base = base_cost(node.args[0]) - is_read(builder, node.args[1])

    def at(evaluation: Evaluation) -> object:
        try:
            container = operand(evaluation)
            key = key_step(evaluation)
        finally:
            evaluation.cost += base
        if container is NONE:
            return NONE
        try:
            if optional or type(container) is Optional:
                found = softly(container.value if type(container) is Optional else container, key)
                evaluation.cost += found is not NONE
                return found
            evaluation.cost += 1
            return value_of(container, key)
        except EvaluationError as error:
            raise error.at(position) from None

    return at


def base_cost(node: Expr) -> int:
    """Return the cost of a chain of fields that does not begin at a variable."""
    chain = isinstance(node, ast.Call) and node.function in {"_[_]", "_[?_]", "_?_:_"}
    return 0 if chain or isinstance(node, ast.Select | ast.Ident) else 1


def is_read(builder: StepBuilder, node: Expr) -> bool:
    """Return whether a node is a variable, a field, or an element."""
    if isinstance(builder.references.get(node.id), VariableReference | LocalReference | DefinitionReference):
        return True
    if isinstance(node, ast.Select):
        return not node.test
    return isinstance(node, ast.Call) and node.function in {"_[_]", "_[?_]"}


def only_reads(builder: StepBuilder, node: Expr) -> bool:
    """Return whether a node is a variable, or read of one or of a computed value."""
    while True:
        if isinstance(builder.references.get(node.id), VariableReference | LocalReference | DefinitionReference):
            return True
        if isinstance(node, ast.Select) and not node.test:
            node = node.operand
        elif isinstance(node, ast.Call) and node.function in {"_[_]", "_[?_]"}:
            node = node.args[0]
        else:
            return False
