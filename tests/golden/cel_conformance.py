"""The CEL conformance suites: value, error or type of every case that needs no protocol buffers.

Cases that need them are no part of the language here (there are no message types), and yield no result.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from koordpolicy.engine.cel.check.checker import check
from koordpolicy.engine.cel.check.environment import Environment, Function, Overload, Variable
from koordpolicy.engine.cel.check.signatures import show
from koordpolicy.engine.cel.library import BINDINGS, ENCODERS, LISTS, MATH, OPTIONALS, SETS, STANDARD, STRINGS, table
from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.syntax.ast import Call, Expr, Ident, children
from koordpolicy.engine.cel.syntax.limits import ExpressionLimits
from koordpolicy.engine.cel.syntax.parser import parse
from koordpolicy.engine.cel.values.types import DYN
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.kubernetes.library.network import IP, NETWORK, ip
from koordpolicy.engine.source import PolicyError, Source

from . import cel_values
from .result import Result

_SUITE = "cel_conformance"


def _mapped_ip(text: str) -> IP:
    """Return the address that a string stands for; an IPv4-mapped one in hexadecimal is the IPv4 address.

    cel-go's network extension accepts these, which Kubernetes rejects.
    """
    try:
        return ip(text)
    except EvaluationError:
        if "." not in text and ":" in text and "%" not in text:
            with suppress(ValueError):
                mapped = ipaddress.IPv6Address(text).ipv4_mapped
                if mapped is not None:
                    return IP(mapped)
        raise


NETWORK_EXTENSION = tuple(
    replace(function, overloads=tuple(
        replace(each, evaluate=_mapped_ip) if each.id == "string_to_ip" else each for each in function.overloads
    ))
    for function in NETWORK
)


def run(path: Path, *, full: bool = False) -> Iterator[Result]:
    """Compare every plain case of a suite's file."""
    for case in json.loads(path.read_text(encoding="utf-8"))["cases"]:
        if not case.get("needs_proto"):
            name = f"{case['suite']}/{case['section']}/{case['name']}"
            yield Result(_SUITE, name, *_compare(case))


@cache
def _environment() -> Environment:
    functions = table(STANDARD, STRINGS, LISTS, MATH, SETS, ENCODERS, OPTIONALS, BINDINGS, NETWORK_EXTENSION)
    return Environment(
        functions=functions, homogeneous_literals=False, has_on_scalars=False, double_keys=False,
        escaped_identifiers=True, limits=ExpressionLimits(comprehensions=20),
    )


def _compare(case: dict[str, Any]) -> tuple[bool, str]:
    wanted = case["expect"]
    try:
        program = _program(case)
        if case.get("check_only"):
            found = _type(program)
            return found == wanted["type"], f"wanted type {wanted['type']}, found {found}"
        bindings = {name: cel_values.read(held["value"]) for name, held in case.get("bindings", {}).items()}
        value = cel_values.show(program.evaluate(bindings))
        exact = cel_values.show(program.metered(bindings)[0])
    except PolicyError as error:
        return bool(wanted.get("error")), f"wanted {wanted}, refused: {error.problems[0].message}"
    except EvaluationError as error:
        return bool(wanted.get("error")), f"wanted {wanted}, failed: {error.message}"
    except ValueError as error:
        return False, str(error)
    if wanted.get("error"):
        return False, f"wanted an error, found {value}"
    if "type" in wanted and _type(program) != wanted["type"]:
        return False, f"wanted type {wanted['type']}, found {_type(program)}"
    if value != exact:
        return False, f"the fast evaluator says {value}, the exact one {exact}"
    shown = cel_values.show_wanted(wanted["value"])
    return value == shown, f"wanted {shown}, found {value}"


def _type(program: Program) -> str:
    return show(program.type).replace("null", "null_type") if show(program.type) == "null" else show(program.type)


def _program(case: dict[str, Any]) -> Program:
    environment = _environment()
    unchecked = bool(case.get("disable_check"))
    for each in case.get("type_env", ()):
        if "type" in each:
            environment = environment.with_variables(Variable(each["name"], cel_values.read_type(each["type"])))
        else:
            environment = environment.with_functions(Function(each["name"], tuple(map(_overload, each["function"]))))
    for name in case.get("bindings", {}):
        if name not in environment.variables:
            environment = environment.with_variables(Variable(name, DYN))
    source = Source("<expression>", case["expr"])
    root = parse(source, limits=environment.limits, escaped_identifiers=True)
    if unchecked:
        environment = _with_all_names(environment, root)
    environment = replace(environment, container=case.get("container", ""))
    return Program.of(check(source, root, environment, lenient=unchecked))


def _with_all_names(environment: Environment, root: Expr) -> Environment:
    """Return an environment for an expression that nobody checks: unknown names fail where they are evaluated."""
    pending = [root]
    while pending:
        node = pending.pop()
        pending.extend(children(node))
        if isinstance(node, Ident) and not any(name.partition(".")[0] == node.name for name in environment.variables):
            environment = environment.with_variables(Variable(node.name, DYN))
        elif isinstance(node, Call) and node.function[0].isalpha() and node.function not in environment.functions:
            count = len(node.args) + (node.target is not None)
            overload = Overload(
                node.function, (DYN,) * count, DYN, _no_implementation, member=node.target is not None, pure=False,
            )
            environment = environment.with_functions(Function(node.function, (overload,)))
    return environment


def _overload(declared: dict[str, Any]) -> Overload:
    # These functions have no implementation: they are checked only. Their variables are plain names in the files.
    letters = ("T", "U", "V")
    return Overload(
        declared["id"], tuple(cel_values.read_type(each, letters) for each in declared["params"]),
        cel_values.read_type(declared["result"], letters), _no_implementation,
        member=declared["member"], pure=False,
    )


def _no_implementation(*_: object) -> object:
    raise EvaluationError("no such overload")
