"""Checks of names and fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from koordpolicy.engine.source import did_you_mean

from ..syntax.ast import Expr, Ident, Select
from ..values.types import BOOL, DYN, ERROR, ObjectType, Type, optional_of
from .checked_ast import DefinitionReference, LocalReference
from .node_checker import NodeChecker
from .overload_errors import MOST_SHOWN

_MOST_FIELDS: Final = 20
"""All fields of the engine's own types (`NodeInfo`), so that nobody has to look them up."""
_PARAMS: Final = "params"
_CONSTANTS: Final = {"true": "true", "false": "false", "null": "null", "none": "null", "nil": "null"}


def ident(checker: NodeChecker, node: Ident) -> Type:
    """Check a name: of a variable, or of a type."""
    name = node.name
    if not node.rooted:
        local = checker.local(name)
        if local is not None:
            checker.references[node.id] = LocalReference(name)
            return local
    found = checker.resolve(node, "." + name if node.rooted else name)
    if found is not None:
        return found
    environment = checker.environment
    end = node.position + len(name)
    if name == environment.definitions_name and environment.definitions:
        return checker.complain(
            f"`{name}` has no value of its own", node, end=end, code="cel-name",
            help=f"name one of them, as in `{name}.{next(iter(environment.definitions))}`",
        )  # fmt: skip
    if not name:
        return ERROR  # a macro's variable that was no name
    known = [*environment.variables, *(each for each, _ in checker.locals)]
    if environment.definitions:
        known.append(environment.definitions_name)
    constant = _CONSTANTS.get(name.lower())
    hint = did_you_mean(name, known) if constant is None else f"did you mean `{constant}`?"
    owner = _owner(checker, name)
    if owner:  # what a document declares comes before a name that is similar
        hint = f"did you mean `{owner}.{name}`?"
    elif not hint and name in environment.functions:
        hint = f"`{name}` is a function: call it"
    elif not hint and known:
        names = sorted(each for each in known if each)
        hint = _listed("there are", names)
        if len(names) > MOST_SHOWN:
            hint += " (docs/points.md has them all)"
    return checker.complain(f"no variable `{name}`", node, end=end, help=hint, code="cel-name")


def _owner(checker: NodeChecker, name: str) -> str:
    """Return the variable, the one of the definitions or of the params, that has a field of this name; else ""."""
    environment = checker.environment
    if name in environment.definitions:
        return environment.definitions_name
    params = environment.variables.get(_PARAMS)
    declared = None if params is None else environment.types.get(params.type.name)
    return _PARAMS if declared is not None and name in declared.fields else ""


def selection(checker: NodeChecker, node: Select) -> Type:
    """Check `x.y`: a field, a part of a dotted name, or a definition."""
    environment = checker.environment
    operand = node.operand
    if not node.test and not node.optional:
        first: Expr = operand
        while isinstance(first, Select):
            first = first.operand
        if isinstance(first, Ident) and first.name in environment.qualified_roots and (
            first.rooted or checker.local(first.name) is None
        ):
            chain = checker.qualified(node)
            found = None if chain is None else checker.resolve(node, chain)
            if found is not None:
                return found
    if isinstance(operand, Ident) and operand.name == environment.definitions_name and environment.definitions:
        name = operand.name
        if (operand.rooted or checker.local(name) is None) and name not in environment.variables:
            return _definition(checker, node, operand)
    type_ = checker.substitute(checker.check(operand))
    return _selected(checker, node, type_)


def _definition(checker: NodeChecker, node: Select, operand: Ident) -> Type:
    definitions = checker.environment.definitions
    name = node.field
    checker.types[operand.id] = DYN
    found = definitions.get(name)
    if found is None:
        hint = did_you_mean(name, definitions) or _listed("there are", sorted(definitions))
        return checker.complain(
            f"no variable `{operand.name}.{name}`", node, end=node.end, help=hint, code="cel-name",
        )
    if node.test or node.optional:
        return checker.complain(
            f"`{operand.name}.{name}` is declared: it need not be tested", node, end=node.end,
            help="test the fields that it is made of",
        )  # fmt: skip
    checker.references[node.id] = DefinitionReference(name)
    return found.type


def _selected(checker: NodeChecker, node: Select, type_: Type) -> Type:
    """Return the type of a selection from a value of a type."""
    inner = type_
    optional = node.optional
    if type_.name == "optional_type" and not type_.variable:
        inner = checker.substitute(type_.parameters[0])
        optional = True
    found = _field(checker, node, inner)
    if found is ERROR:
        return ERROR
    if node.test:
        return BOOL
    return optional_of(found) if optional and found.name != "optional_type" else found


def _field(checker: NodeChecker, node: Select, type_: Type) -> Type:
    if type_ == ERROR:
        return ERROR
    if type_ == DYN or type_.variable:
        return DYN
    if type_.name == "map":
        return type_.parameters[1]
    declared = checker.environment.types.get(type_.name)
    end = max(node.position + 1, node.operand.end if node.test else node.end)
    if declared is None:
        help_ = "`[n]` reads an element, `.all(x, ...)` all of them" if type_.name == "list" else ""
        return checker.complain(
            f"`{checker.shown(type_)}` has no fields: cannot read `{node.field}`", node,
            end=None if node.test else end, help=help_,
        )  # fmt: skip
    field = declared.fields.get(node.field)
    if field is not None:
        return field.type
    hint = did_you_mean(node.field, declared.fields)
    if not hint and node.field in checker.environment.variables:
        hint = f"`{node.field}` is a variable of its own"
    elif declared.index is not None:
        quoted = 'any other name is written in full and in quotes, as in `["nvidia.com/gpu"]`'
        hint = f"{hint} ({quoted})" if hint else quoted
    elif not hint and (inner := _field_inside(checker, node.field, declared)):
        hint = f"did you mean `{inner}.{node.field}`?"
    elif not hint and declared.fields:
        hint = _listed("it has", sorted(declared.fields), most=_MOST_FIELDS)
    elif not hint:
        hint = declared.undeclared or "it has no known fields"
    return checker.complain(
        f"no such field `{node.field}` in `{type_.name}`", node, end=None if node.test else end, help=hint,
        code="cel-name",
    )  # fmt: skip


def _field_inside(checker: NodeChecker, name: str, declared: ObjectType) -> str:
    """Return the field whose type has a field `name`, as `metadata` has `labels`; empty if none has it."""
    for outer, field in declared.fields.items():
        inner = checker.environment.types.get(field.type.name)
        if inner is not None and name in inner.fields:
            return outer
    return ""


def _listed(before: str, names: Sequence[str], *, most: int = MOST_SHOWN) -> str:
    shown = ", ".join(f"`{each}`" for each in names[:most])
    return f"{before} {shown}" + (", ..." if len(names) > most else "")
