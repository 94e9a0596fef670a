"""Environments: the variables, object types, functions and named definitions that an expression may use.

An environment is data. The checker reads the signatures, the evaluators the implementations, the cost estimate the
sizes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Protocol, TypeAlias

from ..syntax.limits import ExpressionLimits
from ..values.traversal import Walk, everything, texts
from ..values.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    NULL,
    STRING,
    TIMESTAMP,
    UINT,
    ObjectType,
    Type,
    list_of,
    map_of,
    optional_of,
)
from ..values.values import EvaluationError


class Scope(enum.IntEnum):
    """The scope in which a value is constant, from all decisions to one row; an expression has the widest scope of its
    parts.
    """

    CONSTANT = 0
    """Fixed when the expression is compiled: literals, params."""
    DECISION = 1
    """One value per decision: the pod that is being scheduled, `now`."""
    ROW = 2
    """One value per row of the decision's subject: the node, the pod that may be evicted."""


_TYPE_NAMES: Final = {
    **{str(each): each for each in (BOOL, INT, UINT, DOUBLE, STRING, BYTES, TIMESTAMP, DURATION)},
    "null_type": NULL, "list": list_of(DYN), "map": map_of(DYN, DYN), "type": Type("type"),
    "optional_type": optional_of(DYN),
}  # fmt: skip
PLAIN: Final = frozenset((
    "bool", "int", "uint", "double", "string", "bytes", TIMESTAMP.name, DURATION.name, "null", "type",
))
"""Types whose values contain no other values."""
TEXTS: Final = frozenset({STRING.name, BYTES.name})
"""Types of values of any length that contain no other values."""
_UNNAMED: Final = frozenset(("dyn", "null"))


@dataclass(frozen=True, slots=True)
class Variable:
    """A declared name. `name` may be dotted (`a.b`): the longest declared prefix of a chain wins."""

    name: str
    type: Type
    scope: Scope = Scope.ROW
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one call in Kubernetes' units, without that of its arguments (apiserver `pkg/cel/library/cost.go`).

    cost = base + sum(ceil(factor * size(argument)) for the arguments in `per_size`); the receiver is argument 0. Where
    `product` is set, the terms of `per_size` are multiplied.
    """

    base: int = 1
    per_size: tuple[tuple[int, float], ...] = ()
    product: bool = False


@dataclass(frozen=True, slots=True)
class UnknownArgument:
    """An argument that is not a literal, as `validate` receives it; its type may be known."""

    type: Type = DYN


class InvalidLiteralError(Exception):
    """A call with literal arguments that always fails.

    `path` leads to the invalid part: the number of the argument (receiver first), then of elements within it.
    """

    def __init__(self, message: str, *path: int) -> None:
        super().__init__(message)
        self.message = message
        self.path = path


def validator(argument: int, read: Callable[..., object]) -> Callable[[tuple[object, ...]], None]:
    """Return a `validate` that passes one argument, if it is a text, to a function that raises if it is invalid.

    A literal of another kind (`dyn(1.5)`) is an error when the call is evaluated.
    """

    def validate(arguments: tuple[object, ...]) -> None:
        text = arguments[argument]
        if isinstance(text, str):
            try:
                read(text)
            except EvaluationError as error:
                raise InvalidLiteralError(error.message, argument) from error

    return validate


Reads: TypeAlias = "tuple[tuple[tuple[str, ...], ...] | None, ...]"
"""Per argument the paths that a function reads below it, or None for the whole argument."""


@dataclass(frozen=True, slots=True)
class Overload:
    """One signature of a function, with its implementation by row.

    `evaluate` takes the arguments (receiver first) as plain values, already known to have the parameters' types, and
    returns a value or raises `EvaluationError`. `pure` is false for a call that must be neither folded nor cached.
    """

    id: str
    parameters: tuple[Type, ...]
    result: Type
    evaluate: Callable[..., object]
    member: bool = False
    cost: Cost = Cost()
    pure: bool = True
    validate: Callable[[tuple[object, ...]], None] | None = None
    """Validates a call when it is compiled: gets the values of literal arguments (lists of literals included,
    `UnknownArgument` for all else), receiver first, and raises `InvalidLiteralError` for a call that always fails."""
    states: Callable[[str], int] | None = None
    """Returns the states of its second argument, where that is a constant pattern (see `patterns`)."""
    measure: Callable[..., int] | None = None
    """The cost of a call with these arguments if it is not a sum over their sizes; `cost` then is an upper bound."""
    dynamic: bool = False
    """True if it is called only with arguments of unknown type: the checker has no such signature."""
    walk: Walk | None = None
    """The steps of a call through its arguments (see `traversal`). By default it traverses all of them if one may
    contain other values, and otherwise its strings, unless `cost` or `measure` charges the length of one."""
    result_steps: Callable[..., int] | None = None
    """The steps of a call that follow from its result; takes the result and then the arguments. For a function whose
    result may be large although its arguments are not, or whose time depends on what it finds."""
    reads: Reads | None = None
    """The parts of its arguments that it reads, if not all: results are cached while those parts are unchanged."""
    by_column: Callable[..., tuple[Any, Any]] | None = None
    """The function for many rows at once, for parameters and a result of the types bool, int and double.

    It takes numpy arrays (bool, int64 or float64, one value per row; plain numbers for values that all rows share, at
    least one is an array) and returns an array of results and a bool array of the rows in which they are exactly
    what `evaluate` returns (None: all rows). The others are evaluated one by one. Rows without input hold any number.
    """

    def __post_init__(self) -> None:
        if self.walk is not None:
            return
        if not all(each.name in PLAIN and not each.variable for each in self.parameters):
            object.__setattr__(self, "walk", everything)
        elif not self.cost.per_size and self.measure is None and any(each.name in TEXTS for each in self.parameters):
            object.__setattr__(self, "walk", texts)


@dataclass(frozen=True, slots=True)
class Function:
    """A function: a name that can be called, with all its overloads.

    `name` is the plain name (`size`), an operator in cel-go's spelling (`_+_`), or a qualified one (`math.greatest`),
    which is tried before "member call on the variable `math`".
    """

    name: str
    overloads: tuple[Overload, ...]
    doc: str = ""
    example: str = ""
    """A true expression for the reference page, evaluated by a test."""


_LIMITS: Final = ExpressionLimits()


class Definition(Protocol):
    """A named checked expression, as the checker reads it; evaluators get it from `Checked.definition`."""

    @property
    def type(self) -> Type:
        """The type of its value."""
        ...

    @property
    def scope(self) -> Scope:
        """The scope of its value."""
        ...

    @property
    def reads(self) -> frozenset[tuple[str, ...]]:
        """The paths of variables that it reads."""
        ...


@dataclass(frozen=True)
class Environment:
    """The names that expressions of one slot may use. Frozen: a method that adds returns a new one.

    `definitions` are checked expressions by name, read as `<definitions_name>.<name>` (`variables.cpu`): lazy, at most
    one evaluation per row. Later ones may use earlier ones.
    """

    variables: Mapping[str, Variable] = field(default_factory=dict)
    types: Mapping[str, ObjectType] = field(default_factory=dict)
    functions: Mapping[str, Function] = field(default_factory=dict)
    definitions: Mapping[str, Definition] = field(default_factory=dict)
    definitions_name: str = "variables"
    container: str = ""
    limits: ExpressionLimits = _LIMITS
    sizes: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    """The sizes that cost estimates assume of values: by path from a variable (`("pod", "spec",
    "containers")`) or by type and field (`("kubernetes.PodSpec", "containers")`); see `cost`."""
    homogeneous_literals: bool = True
    """`[1, 'a']` is an error (Kubernetes' setting)."""
    has_on_scalars: bool = True
    """`has()` on a null, string, number or bool is false, `.?field` and `[?key]` none (Kubernetes); otherwise an error
    (the conformance suites)."""
    double_keys: bool = True
    """A double may be the key of a map (Kubernetes); otherwise it is an error (the specification)."""
    escaped_identifiers: bool = False
    """True if field names may be back-quoted (off in Kubernetes)."""

    @cached_property
    def type_names(self) -> Mapping[str, Type]:
        """The types that can be named in an expression, with `dyn` for their parameters."""
        named = {**_TYPE_NAMES, **{name: each.type for name, each in self.types.items()}}
        for function in self.functions.values():
            for overload in function.overloads:
                for each in (overload.result, *overload.parameters):
                    if not each.variable and each.name not in named and each.name not in _UNNAMED:
                        named[each.name] = Type(each.name, (DYN,) * len(each.parameters))
        return named

    @cached_property
    def qualified_roots(self) -> frozenset[str]:
        """The first parts of all dotted names of variables and types: a chain with another first part is not a name."""
        dotted = [*self.variables, *self.type_names]
        roots = {name.partition(".")[0] for name in dotted if "." in name}
        container = self.container
        while container:
            inside = f"{container}."
            roots.update(name[len(inside) :].partition(".")[0] for name in dotted if name.startswith(inside))
            container = container.rpartition(".")[0]
        return frozenset(roots)

    def with_variables(self, *variables: Variable) -> Environment:
        """Return this environment with more (or redeclared) variables."""
        added = replace(self, variables={**self.variables, **{each.name: each for each in variables}})
        return self._keep(added, "type_names")

    def with_types(self, *types: ObjectType) -> Environment:
        """Return this environment with more object types."""
        return replace(self, types={**self.types, **{each.name: each for each in types}})

    def with_functions(self, *functions: Function) -> Environment:
        """Return this environment with more functions; overloads of a known name are added to that function."""
        merged = dict(self.functions)
        for function in functions:
            old = merged.get(function.name)
            overloads = function.overloads if old is None else (*old.overloads, *function.overloads)
            merged[function.name] = replace(function, overloads=overloads)
        return replace(self, functions=merged)

    def with_definition(self, name: str, definition: Definition) -> Environment:
        """Return this environment with one more definition, read as `variables.<name>`."""
        added = replace(self, definitions={**self.definitions, name: definition})
        return self._keep(added, "type_names", "qualified_roots")

    def _keep(self, other: Environment, *computed: str) -> Environment:
        # Shared, as chains of environments that differ by one name would recompute the same tables.
        other.__dict__.update((name, self.__dict__[name]) for name in computed if name in self.__dict__)
        return other
