"""Evaluate one CEL expression: its type and its value, on one node or on all nodes of a cluster.

Without a cluster the expression may read the variables of `--var`. With one it sees the variables of the point (`node`,
`allocatable`, `usage`, ... and with `--pod` the pod); without `--node` it is evaluated by column, for all nodes at
once.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from koordpolicy.engine import strict_json
from koordpolicy.engine.cel.check.environment import Scope, Variable
from koordpolicy.engine.cel.scalar.program import Program, compile  # noqa: A004 - it is what it does
from koordpolicy.engine.cel.scalar.tracing import explain
from koordpolicy.engine.cel.syntax.lexer import INT_MAX, INT_MIN
from koordpolicy.engine.cel.values.types import TIMESTAMP
from koordpolicy.engine.cel.values.values import EvaluationError, Timestamp
from koordpolicy.engine.cel.vector.plan import evaluate
from koordpolicy.engine.cluster.kinds import Read, lacking
from koordpolicy.engine.compile.plugins import kinds_of
from koordpolicy.engine.explanation import plain, plain_or_cut
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.framework.slots import PENDING_POD_VARIABLES, Slot, environment
from koordpolicy.engine.framework.typed_values import typed
from koordpolicy.engine.source import Source
from koordpolicy.engine.texts import beginning

from .cluster_loading import cluster_of, moment_of, node_of, pod_of, warn_of_lacks
from .composition import add_cluster, python_functions
from .exits import Exit, Stop
from .terminal import add_output, heading, table, write, write_json
from .time_limit import compile_limit

if TYPE_CHECKING:
    from koordpolicy.engine.cel.check.environment import Environment
    from koordpolicy.engine.cel.vector.frame import Frame

    from . import Builtins

EXAMPLES = """\
examples:
  koord-policy eval '1 + 1'
  koord-policy eval 'labels.exists(l, l.startsWith("eu-"))' --var 'labels=["eu-1a", "us-2"]'
  koord-policy eval 'allocatable.cpu - requested.cpu' --cluster examples/cluster
  koord-policy eval 'requests.cpu > 0 && usage.cpu < 65 * allocatable.cpu / 100' --plan
  koord-policy eval 'usage.cpu * 100 / allocatable.cpu < 65' --cluster examples/cluster --node general-03 --steps
  koord-policy eval 'requests.cpu <= allocatable.cpu - requested.cpu' --cluster examples/cluster --pod shop/web-101

exit codes: 0 a value, 2 usage, 3 the expression is invalid, 5 evaluating it ended in an error (for all nodes: on
every node)
"""

POINTS: Final = {
    "preFilter": Slot.PRE_FILTER, "filter": Slot.FILTER, "score": Slot.SCORE, "source": Slot.SOURCE,
    "target": Slot.DESTINATION, "until": Slot.UNTIL, "room": Slot.ROOM,
}
"""The supported points: their rows are nodes, or there is one result per decision."""

ENGINES: Final = ("koord", "cel-python")
_DIGITS: Final = 20  # a sign and 19 digits


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("expression", metavar="EXPR", help="the expression")
    add_cluster(parser, required=False)
    parser.add_argument("--node", metavar="NAME", help="evaluate on this node only")
    parser.add_argument("--pod", metavar="POD", help="the pod that the expression sees")
    parser.add_argument("--var", metavar="NAME=JSON", action="append", default=[],
                        help="a variable and its value; may be repeated, and wins over the cluster's")
    parser.add_argument("--point", choices=tuple(POINTS), default="filter",
                        help="what the expression may read (default: filter)")
    parser.add_argument("--steps", action="store_true", help="also print the values of the sub-expressions")
    parser.add_argument("--plan", action="store_true",
                        help="print how the expression is split up, what each part reads and costs, and what is "
                             "cached, without evaluating it")
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[0],
                        help="cel-python is the independent second engine: slow, and it knows only the core language")
    add_output(parser)


def run(options: argparse.Namespace, builtins: Builtins) -> int:  # noqa: ARG001 - every command is given both
    """Run the command; see the module."""
    given = dict(_variable(text) for text in options.var)
    if options.cluster is None and (options.node or options.pod):
        raise Stop("`--node` and `--pod` need a cluster: name it with `--cluster`")
    scope = _environment(POINTS[options.point], given)
    with compile_limit("compiling"):
        program = compile(Source("<expression>", options.expression), scope)
    if options.plan:
        return _plan(program, options)
    values = {name: _value(scope, name, value) for name, value in given.items()}
    if options.cluster is None:
        return _one(program, _bindings(program, values, {}), options, {})
    cluster = cluster_of(options.cluster)
    now = moment_of(options.now, options.cluster, cluster)
    values = {"now": Timestamp.of(now)} | _pod_values(cluster, options.pod) | values
    row = node_of(cluster, options.node) if options.node is not None else None
    reads = map(Read, kinds_of(Framework.SCHEDULER, program.checked.reads, None))
    lacks = warn_of_lacks(lacking({"the expression": tuple(reads)}, cluster))
    snapshot = cluster.snapshot(now)
    frame = snapshot.frame(values)
    if row is None and program.checked.scope is Scope.ROW and options.engine == ENGINES[0]:
        _bindings(program, values, dict.fromkeys(_rows(scope)))
        return _all(program, frame, snapshot.names, options, lacks)
    if row is None and program.checked.scope is Scope.ROW:
        raise Stop("cel-python answers for one node at a time: name it with `--node`")
    rows = {} if row is None else _row_values(program, frame, row)
    return _one(program, _bindings(program, values, rows), options, lacks)


def _plan(program: Program, options: argparse.Namespace) -> int:
    from koordpolicy.engine.cel.explain.plans import describe

    parts, limits = describe(program), program.checked.environment.limits
    whole = parts[0]
    if options.output == "json":
        write_json({
            "type": str(program.type),
            "cost": {"lowest": whole.cost.low, "highest": whole.cost.high, "limit": limits.cost,
                     "documentLimit": limits.document_cost, "decisionLimit": limits.decision_cost},
            "parts": [
                {"expression": part.text, "depth": part.depth, "evaluated": part.strategy.value,
                 "readsOfRows": part.rows, "readsOfDecision": part.decision, "kept": part.cached,
                 "cost": {"lowest": part.cost.low, "highest": part.cost.high}}
                for part in parts
            ],
        })
        return Exit.OK
    write(f"type   {program.type}")
    write(f"cost   {whole.cost.low:,} to {whole.cost.high:,} by row, of at most {limits.cost:,}")
    write(f"cached {whole.cached}")
    heading("parts")
    table(["expression", "evaluated", "reads", "cost"], [
        ["  " * part.depth + part.text, part.strategy.value, ", ".join((*part.rows, *part.decision)), part.cost.high]
        for part in parts
    ])
    return Exit.OK


def _variable(text: str) -> tuple[str, Any]:
    name, separator, written = text.partition("=")
    if not separator or not name.isidentifier():
        raise Stop(f"`--var {text}`: expected NAME=JSON, for example `--var 'limit=65'`")
    option = f"`--var {beginning(text)}`"
    try:
        return name, strict_json.decode(written, parse_int=_integer, parse_float=_double)
    except strict_json.ConstantError as error:
        raise Stop(f"{option}: `{error.constant}` is not JSON; in the expression it is `double('{error.constant}')`",
                   ) from None
    except _UnreadableNumber as error:
        raise Stop(f"{option}: {error}") from None
    except (ValueError, RecursionError):
        raise Stop(f"{option}: `{beginning(written)}` is not JSON; a string needs quotes: "
                   f"`--var '{name}=\"{beginning(written)}\"'`") from None


class _UnreadableNumber(Exception):
    """A number that no CEL type holds; the message is for the user."""


def _integer(text: str) -> int:
    # Python refuses to read thousands of digits.
    if len(text) <= _DIGITS and INT_MIN <= (value := int(text)) <= INT_MAX:
        return value
    raise _UnreadableNumber(f"`{beginning(text)}` is beyond the integers, which go from {INT_MIN} to {INT_MAX}; with a "
                            "decimal point or an exponent (`1e20`) it is a double")


def _double(text: str) -> float:
    value = float(text)
    if math.isfinite(value):
        return value
    raise _UnreadableNumber(
        f"`{beginning(text)}` is beyond the doubles, of which the largest is {sys.float_info.max:g}")


def _environment(slot: Slot, given: Mapping[str, Any]) -> Environment:
    """Return the slot's environment with the given variables added, typed by their values."""
    params = given.get("params")
    found = environment(
        slot, params=typed(params) if isinstance(params, Mapping) else None, extensions=python_functions(),
    )
    for name, value in given.items():
        if name not in found.variables:
            named = typed({name: value})
            found = found.with_types(*named.types).with_variables(
                Variable(name, named.types[0].fields[name].type, Scope.CONSTANT),
            )
        else:
            # It has one value for all rows, so it is no longer a ROW variable.
            declared = found.variables[name]
            found = found.with_variables(Variable(name, declared.type, Scope.DECISION, declared.doc))
    return found


def _value(scope: Environment, name: str, value: Any) -> object:
    if scope.variables[name].type == TIMESTAMP and isinstance(value, str):
        try:
            return Timestamp.parse(value)
        except EvaluationError as error:
            raise Stop(f"`--var {name}`: {error.message}") from None
    return value


def _rows(scope: Environment) -> list[str]:
    return [name for name, variable in scope.variables.items() if variable.scope is Scope.ROW]


def _row_values(program: Program, frame: Frame, row: int) -> dict[str, object]:
    """Return the ROW variables that the program reads on a node; an unreadable one has its error as value."""
    found: dict[str, object] = {}
    rows = _rows(program.checked.environment)
    for name in program.variables:
        if name in rows:
            try:
                found[name] = frame.row_value(name, row)
            except EvaluationError as error:
                found[name] = error
    return found


def _pod_values(cluster: Any, name: str | None) -> dict[str, object]:
    if name is None:
        return {}
    from koordpolicy.engine.cluster.pod_variables import pending_pod_values  # only where a pod is named

    return dict(pending_pod_values(pod_of(cluster, name)))


def _bindings(program: Program, values: Mapping[str, object], rows: Mapping[str, object]) -> dict[str, object]:
    """Return a value for every variable that the program reads.

    Raises:
        Stop: a variable has no value; names the option that would set it.
    """
    for name in program.variables:
        if name not in values and name not in rows:
            source = "a pod with `--pod`" if name in PENDING_POD_VARIABLES else "a cluster with `--cluster`"
            raise Stop(f"the expression reads `{name}`: name {source}, or give it with `--var '{name}=JSON'`")
    return {name: values[name] if name in values else rows[name] for name in program.variables}


def _one(
    program: Program, bindings: dict[str, object], options: argparse.Namespace, lacks: Mapping[str, object],
) -> int:
    error = next((value for value in bindings.values() if isinstance(value, EvaluationError)), None)
    value: object = None
    if error is None:
        try:
            value = _evaluate(program, bindings, options.engine)
        except EvaluationError as found:
            error = found
    steps = _steps(program, bindings) if options.steps else []
    if options.output == "json":
        result: dict[str, object] = {"type": str(program.type)}
        result |= _member(value) if error is None else {"error": error.message}
        if options.steps:
            result["steps"] = [{"expression": text, **_member(shown)} for text, shown in steps]
        write_json(result | dict(lacks))
    else:
        write(f"type   {program.type}")
        write(f"value  {_shown(value)}" if error is None else f"error  {error.message}")
        if steps:
            heading("steps")
            table(["expression", "value"], [[text, _shown(shown)] for text, shown in steps])
    return Exit.OK if error is None else Exit.IMPOSSIBLE


def _evaluate(program: Program, bindings: Mapping[str, object], engine: str) -> object:
    if engine == ENGINES[0]:
        return program.evaluate(bindings)
    from koordpolicy.engine.cel.celpython import evaluate as second  # takes half a second to import

    return second(program.source.text, bindings)


def _steps(program: Program, bindings: Mapping[str, object]) -> list[tuple[str, Any]]:
    if any(isinstance(value, EvaluationError) for value in bindings.values()):
        return []
    return [
        (text, f"error: {value.message}" if isinstance(value, EvaluationError) else value)
        for _, text, value in explain(program, bindings)
    ]


def _all(
    program: Program, frame: Frame, names: Any, options: argparse.Namespace, lacks: Mapping[str, object],
) -> int:
    column = evaluate(program, frame)
    values = column.values.tolist()
    errors = {names[row]: error.message for row, error in sorted(column.errors.items())}
    numeric = not errors and column.values.dtype.kind in "if"
    if options.output == "json":
        shown = {name: plain_or_cut(value) for name, value in zip(names, values, strict=True) if name not in errors}
        truncated = [name for name, (_, cut) in shown.items() if cut]
        write_json({
            "type": str(program.type), "values": {name: value for name, (value, _) in shown.items()},
            "errors": errors, **({"truncated": truncated} if truncated else {}), **lacks,
        })
    else:
        table(["node", str(program.type)], [
            [name, f"error: {errors[name]}" if name in errors else value if numeric else _shown(value)]
            for name, value in zip(names, values, strict=True)
        ])
    return Exit.IMPOSSIBLE if len(errors) == len(names) else Exit.OK


def _member(value: object) -> dict[str, object]:
    """Return a value as the field `value`, and whether parts of it are omitted."""
    shown, cut = plain_or_cut(value)
    return {"value": shown, **({"truncated": True} if cut else {})}


def _shown(value: object) -> str:
    return json.dumps(plain(value), ensure_ascii=False)
