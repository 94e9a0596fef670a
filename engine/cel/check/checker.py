"""Type checker: resolves every name of a tree, types every node, reports every error.

The checker is gradual: a node of type `dyn` is checked at run time, any other against its declaration. A faulty node
has the type ERROR, and nodes above it report nothing more: each error is reported once, all of them together. Types
are unified as in cel-go (`checker/types.go`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.source import PolicyError, Problem, Source, did_you_mean

from ..syntax.ast import (
    Bind,
    Call,
    Comprehension,
    Expr,
    Ident,
    ListLiteral,
    Literal,
    Macro,
    MapLiteral,
    MessageLiteral,
    OptionalMap,
    Select,
    children,
)
from ..values.deadline import Deadline
from ..values.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    ERROR,
    INT,
    NULL,
    STRING,
    TIMESTAMP,
    UINT,
    Type,
    list_of,
    map_of,
    optional_of,
    type_of,
)
from ..values.values import EvaluationError, Uint
from . import overload_errors
from .checked_ast import (
    CallReference,
    Checked,
    DefinitionReference,
    LocalReference,
    Reference,
    TypeReference,
    VariableReference,
    reads_below,
)
from .dispatch import choose
from .environment import Environment, Function, InvalidLiteralError, Overload, UnknownArgument
from .folding import FOLDED, Folding
from .overload_errors import ELSEWHERE, MOST_SHOWN, FailedCall
from .patterns import charge
from .signatures import SYMBOLS, show
from .survey import Survey
from .unification import Unifier

_ORDERED: Final = (BOOL, INT, UINT, DOUBLE, STRING, BYTES, TIMESTAMP, DURATION)
_NUMBERS: Final = frozenset((INT, UINT, DOUBLE))
_MOST_FIELDS: Final = 20
"""All fields of the engine's own types (`NodeInfo`), so that nobody has to look them up."""
_MIXED: Final = frozenset(("format",))
"""Functions whose arguments may be literals of mixed types, even where the environment requires one type."""

_CONSTANTS: Final = {"true": "true", "false": "false", "null": "null", "none": "null", "nil": "null"}


def check(
    source: Source,
    root: Expr,
    environment: Environment,
    *,
    expected: Type | tuple[Type, ...] | None = None,
    lenient: bool = False,
) -> Checked:
    """Return the checked tree of an expression; raise `PolicyError` with all its errors.

    Codes: `cel-type` for types that do not fit, `cel-name` for undeclared names, `cel-syntax` for trees that cannot be
    checked at all, `cel-deadline` where the thread's `Deadline` has passed. `expected`: the types that the whole
    expression may have, default any. A `dyn` result matches only DYN itself, which allows a result that is only known
    at run time (and, as the only expected type, any result). `lenient`: wrong types are errors at run time, as without
    a checker; undeclared names are still reported.
    """
    deadline = Deadline.current()
    if deadline is not None and deadline.passed:
        deadline.stop(source)
        raise PolicyError([Problem("was not checked before its deadline", source.whole(), code="cel-deadline")])
    checker = _Checker(source, environment, lenient)
    try:
        type_ = checker.check(root)
        checker.check_result(root, type_, expected)
    except RecursionError:
        checker.complain("nested too deeply", root, help="split it up into variables", code="cel-syntax")
    if checker.problems or checker.check_mixed():
        raise PolicyError(checker.problems)
    references = checker.references
    settle = checker.settle
    types = {
        number: settle(each) if each.variable or each.parameters else each for number, each in checker.types.items()
    }
    survey = Survey(references, environment)
    scope = survey.visit(root)
    reads = reads_below(root, references, environment)
    return Checked(source, root, environment, types, references, reads, scope, survey.scopes, survey.mentioned)


@dataclass(frozen=True, slots=True)
class _Resolved:
    """The resolved call of a function with arguments of certain types."""

    function: Function
    """Referenced, so that no other function gets its `id`."""
    reference: CallReference
    result: Type


_RESOLVED: Final[dict[tuple[object, ...], _Resolved]] = {}
_MOST_RESOLVED: Final = 10_000


def _is_open(type_: Type) -> bool:
    """Return whether a type has variables."""
    return type_.variable or (bool(type_.parameters) and any(map(_is_open, type_.parameters)))


class _Checker(Unifier):
    def __init__(self, source: Source, environment: Environment, lenient: bool) -> None:
        super().__init__()
        self.source = source
        self.environment = environment
        self.lenient = lenient
        self.types: dict[int, Type] = {}
        self.references: dict[int, Reference] = {}
        self.problems: list[Problem] = []
        self.locals: list[tuple[str, Type]] = []
        # Literals whose elements must have one type: checked when all variables are bound, and only in an expression
        # without errors.
        self.literals: list[tuple[list[Expr], frozenset[int]]] = []
        self.mixed = 0
        self.loops = 0
        self.folding: Folding | None = None

    def check(self, node: Expr) -> Type:
        """Return the type of a node and record it."""
        type_ = self.types[node.id] = _CHECKS[node.__class__](self, node)
        return type_

    # -- errors --------------------------------------------------------------------------------------------------

    def complain(
        self, message: str, node: Expr, *, end: int | None = None, help: str = "", code: str = "cel-type",  # noqa: A002 - as `Problem` calls it
    ) -> Type:
        """Record an error at a node; return ERROR as its type (`dyn` if the checker is lenient)."""
        if self.lenient and code == "cel-type":
            return DYN
        stop = node.position + 1 if end is None else end
        self.problems.append(Problem(message, self.source.span(node.position, stop), help, code=code))
        return ERROR

    def shown(self, type_: Type) -> str:
        return show(self.substitute(type_))

    # -- names ---------------------------------------------------------------------------------------------------

    def candidates(self, name: str) -> list[str]:
        """Return the candidates for a name, innermost container first."""
        if name.startswith("."):
            return [name[1:]]
        if not self.environment.container:
            return [name]
        names = []
        container = self.environment.container
        while container:
            names.append(f"{container}.{name}")
            container = container.rpartition(".")[0]
        return [*names, name]

    def local(self, name: str) -> Type | None:
        for known, type_ in reversed(self.locals):
            if known == name:
                return type_
        return None

    def resolve(self, node: Expr, name: str) -> Type | None:
        """Resolve a node to the variable or type of this name, if there is one; return its type."""
        environment = self.environment
        for each in self.candidates(name):
            declared = environment.variables.get(each)
            if declared is not None:
                self.references[node.id] = VariableReference(each)
                return declared.type
            named = environment.type_names.get(each)
            if named is not None:
                # As a value a type has no parameters: the type of [1] and of ['a'] is `list`.
                self.references[node.id] = TypeReference(Type(named.name))
                return type_of(named)
        return None

    def check_ident(self, node: Ident) -> Type:
        name = node.name
        if not node.rooted:
            local = self.local(name)
            if local is not None:
                self.references[node.id] = LocalReference(name)
                return local
        found = self.resolve(node, "." + name if node.rooted else name)
        if found is not None:
            return found
        environment = self.environment
        end = node.position + len(name)
        if name == environment.definitions_name and environment.definitions:
            return self.complain(
                f"`{name}` has no value of its own", node, end=end, code="cel-name",
                help=f"name one of them, as in `{name}.{next(iter(environment.definitions))}`",
            )  # fmt: skip
        if not name:
            return ERROR  # a macro's variable that was no name
        known = [*environment.variables, *(each for each, _ in self.locals)]
        if environment.definitions:
            known.append(environment.definitions_name)
        constant = _CONSTANTS.get(name.lower())
        hint = did_you_mean(name, known) if constant is None else f"did you mean `{constant}`?"
        if not hint and name in environment.functions:
            hint = f"`{name}` is a function: call it"
        elif not hint and known:
            names = sorted(each for each in known if each)
            hint = _listed("there are", names)
            if len(names) > MOST_SHOWN:
                hint += " (docs/points.md has them all)"
        return self.complain(f"no variable `{name}`", node, end=end, help=hint, code="cel-name")

    def qualified(self, node: Expr) -> str | None:
        """Return the dotted name that a chain spells, None where it is none or begins with a local."""
        parts: list[str] = []
        while isinstance(node, Select):
            if node.test or node.optional:
                return None
            parts.append(node.field)
            node = node.operand
        if not isinstance(node, Ident):
            return None
        parts.append("." + node.name if node.rooted else node.name)
        return ".".join(reversed(parts))

    # -- nodes ---------------------------------------------------------------------------------------------------

    def check_literal(self, node: Literal) -> Type:
        value = node.value
        if value is None:
            return NULL
        if node.unsigned:
            return UINT
        return _LITERAL_TYPES[value.__class__]

    def check_select(self, node: Select) -> Type:
        environment = self.environment
        operand = node.operand
        if not node.test and not node.optional:
            first: Expr = operand
            while isinstance(first, Select):
                first = first.operand
            if isinstance(first, Ident) and first.name in environment.qualified_roots and (
                first.rooted or self.local(first.name) is None
            ):
                chain = self.qualified(node)
                found = None if chain is None else self.resolve(node, chain)
                if found is not None:
                    return found
        if isinstance(operand, Ident) and operand.name == environment.definitions_name and environment.definitions:
            name = operand.name
            if (operand.rooted or self.local(name) is None) and name not in environment.variables:
                return self.check_definition(node, operand)
        type_ = self.substitute(self.check(operand))
        return self.select(node, type_)

    def check_definition(self, node: Select, operand: Ident) -> Type:
        definitions = self.environment.definitions
        name = node.field
        self.types[operand.id] = DYN
        found = definitions.get(name)
        if found is None:
            hint = did_you_mean(name, definitions) or _listed("there are", sorted(definitions))
            return self.complain(
                f"no variable `{operand.name}.{name}`", node, end=node.end, help=hint, code="cel-name",
            )
        if node.test or node.optional:
            return self.complain(
                f"`{operand.name}.{name}` is declared: it need not be tested", node, end=node.end,
                help="test the fields that it is made of",
            )  # fmt: skip
        self.references[node.id] = DefinitionReference(name)
        return found.type

    def select(self, node: Select, type_: Type) -> Type:
        """Return the type of a selection from a value of a type."""
        inner = type_
        optional = node.optional
        if type_.name == "optional_type" and not type_.variable:
            inner = self.substitute(type_.parameters[0])
            optional = True
        found = self.field(node, inner)
        if found is ERROR:
            return ERROR
        if node.test:
            return BOOL
        return optional_of(found) if optional and found.name != "optional_type" else found

    def field(self, node: Select, type_: Type) -> Type:
        if type_ == ERROR:
            return ERROR
        if type_ == DYN or type_.variable:
            return DYN
        if type_.name == "map":
            return type_.parameters[1]
        declared = self.environment.types.get(type_.name)
        end = max(node.position + 1, node.operand.end if node.test else node.end)
        if declared is None:
            help_ = "`[n]` reads an element, `.all(x, ...)` all of them" if type_.name == "list" else ""
            return self.complain(
                f"`{self.shown(type_)}` has no fields: cannot read `{node.field}`", node,
                end=None if node.test else end, help=help_,
            )  # fmt: skip
        field = declared.fields.get(node.field)
        if field is not None:
            return field.type
        hint = did_you_mean(node.field, declared.fields)
        if not hint and node.field in self.environment.variables:
            hint = f"`{node.field}` is a variable of its own"
        elif declared.index is not None:
            quoted = 'any other name is written in full and in quotes, as in `["nvidia.com/gpu"]`'
            hint = f"{hint} ({quoted})" if hint else quoted
        elif not hint and declared.fields:
            hint = _listed("it has", sorted(declared.fields), most=_MOST_FIELDS)
        elif not hint:
            hint = declared.undeclared or "it has no known fields"
        return self.complain(
            f"no such field `{node.field}` in `{type_.name}`", node, end=None if node.test else end, help=hint,
            code="cel-name",
        )  # fmt: skip

    def check_list(self, node: ListLiteral) -> Type:
        types = []
        for index, element in enumerate(node.elements):
            type_ = self.check(element)
            types.append(self.unwrapped(element, type_) if index in node.optional else type_)
        if ERROR in types:
            return ERROR
        if len(types) > 1:
            self.must_agree(node.elements, node.optional)
        return list_of(self.join(types))

    def check_map(self, node: MapLiteral) -> Type:
        keys, values = [], []
        for entry in node.entries:
            keys.append(self.check(entry.key))
            type_ = self.check(entry.value)
            values.append(self.unwrapped(entry.value, type_) if entry.optional else type_)
        if ERROR in keys or ERROR in values:
            return ERROR
        if len(keys) > 1:
            optional = frozenset(index for index, entry in enumerate(node.entries) if entry.optional)
            self.must_agree([entry.key for entry in node.entries], frozenset())
            self.must_agree([entry.value for entry in node.entries], optional)
        return map_of(self.join(keys), self.join(values))

    def unwrapped(self, node: Expr, type_: Type) -> Type:
        """Return the type in an optional element."""
        type_ = self.substitute(type_)
        if type_.name == "optional_type" and not type_.variable:
            return type_.parameters[0]
        if type_ in (DYN, ERROR) or type_.variable:
            return ERROR if type_ == ERROR else DYN
        return self.complain(
            f"an element marked with `?` must be optional, not `{self.shown(type_)}`", node,
            help="write `optional.of(...)`, or leave the `?` out",
        )  # fmt: skip

    def must_agree(self, nodes: Sequence[Expr], optional: frozenset[int]) -> None:
        if self.environment.homogeneous_literals and not self.mixed and not self.lenient:
            self.literals.append((list(nodes), optional))

    def check_mixed(self) -> bool:
        """Report literals with elements of several types; return whether there are any."""
        for nodes, optional in self.literals:
            first: Type | None = None
            for index, node in enumerate(nodes):
                type_ = self.settle(self.types[node.id])
                if index in optional and type_.name == "optional_type":
                    type_ = type_.parameters[0]
                if first is None:
                    first = type_
                elif type_ != first:
                    self.complain(
                        f"expected `{show(first)}`, found `{show(type_)}`", node, end=max(node.end, node.position + 1),
                        help="all elements of a literal have one type; `dyn()` around each of them allows any",
                    )  # fmt: skip
                    break
        return bool(self.problems)

    def check_message(self, node: MessageLiteral) -> Type:
        for field in node.fields:
            self.check(field.value)
        return self.complain(
            f"no message type `{node.type_name}`", node, code="cel-name",
            help="objects are written as maps: `{'field': value}`",
        )  # fmt: skip

    # -- calls ---------------------------------------------------------------------------------------------------

    def check_call(self, node: Call) -> Type:
        function = node.function
        builtin = _BUILTIN.get(function)
        target = node.target
        mixed = function in _MIXED
        self.mixed += mixed
        types = []
        for each in node.args:
            types.append(self.check(each))  # noqa: PERF401 - a comprehension would be one more frame per level
        self.mixed -= mixed
        if builtin is not None:
            return ERROR if ERROR in types else builtin(self, node, [self.substitute(each) for each in types])
        if target is None:
            name = "." + function if node.rooted else function
            for each_name in self.candidates(name):
                found = self.environment.functions.get(each_name)
                if found is not None:
                    return self.resolve_call(node, found, types, qualified=False)
            return self.no_function(node, function)
        prefix = self.qualified(target)
        if prefix is not None:
            for each_name in self.candidates(f"{prefix}.{function}"):
                found = self.environment.functions.get(each_name)
                if found is not None:
                    return self.resolve_call(node, found, types, qualified=True)
            root = prefix.lstrip(".").partition(".")[0]
            unknown = self.local(root) is None and root not in self.environment.variables
            name = f"{prefix}.{function}"
            foreign = function not in self.environment.functions or name in ELSEWHERE
            if unknown and foreign and self.is_name_space(prefix):
                return self.no_function(node, name)
        receiver = self.check(target)
        found = self.environment.functions.get(function)
        if found is None:
            return ERROR if receiver == ERROR else self.no_function(node, function)
        return self.resolve_call(node, found, [receiver, *types], qualified=False)

    def is_name_space(self, prefix: str) -> bool:
        return any(name.startswith(f"{prefix}.") for name in self.environment.functions)

    def no_function(self, node: Call, name: str) -> Type:
        message, help_ = overload_errors.no_function(
            node, name, self.environment.functions, self.environment.variables,
        )  # fmt: skip
        return self.complain(message, node, help=help_, code="cel-name")

    def resolve_call(self, node: Call, function: Function, types: list[Type], *, qualified: bool) -> Type:
        """Return the result type of a call of a known function, and record the overloads that may run."""
        if ERROR in types:
            return ERROR
        member = node.target is not None and not qualified
        # The resolution depends only on the types if these have no variables: the same calls occur again and again.
        closed = not any(map(_is_open, types))
        key = (id(function), qualified, member, *types)
        if closed:
            known = _RESOLVED.get(key)
            if known is not None:
                self.references[node.id] = known.reference
                self.look_at_literals(node, known.reference, member=member)
                return known.result
        matching: list[Overload] = []
        result: Type | None = None
        for overload in function.overloads:
            if overload.member != member or len(overload.parameters) != len(types):
                continue
            if overload.dynamic and DYN not in types:
                continue
            accepted: Sequence[Type] = overload.parameters
            found = overload.result
            if found.variable or found.parameters or any(each.variable or each.parameters for each in accepted):
                accepted, found = self.instantiate(overload)
            if self.all_assignable(types, accepted):
                matching.append(overload)
                found = self.substitute(found)
                if result is None:
                    result = found
                elif result not in (DYN, found):
                    result = DYN
        if result is None:
            return self.no_overload(node, function, types)
        reference = self.references[node.id] = CallReference(function.name, tuple(matching), qualified)
        if closed and not _is_open(result):
            if len(_RESOLVED) >= _MOST_RESOLVED:
                _RESOLVED.clear()
            _RESOLVED[key] = _Resolved(function, reference, result)
        self.look_at_literals(node, reference, member=member)
        return result

    def look_at_literals(self, node: Call, reference: CallReference, *, member: bool) -> None:
        name, overloads = reference.function, reference.overloads
        if (len(overloads) == 1 and name not in SYMBOLS) or name in FOLDED:
            self.try_literals(node, overloads, node.args if not member else (node.target, *node.args))

    def known(self, node: Expr) -> object:
        """Return the value of a literal, a list of literals or a converted literal; else an `UnknownArgument`."""
        if isinstance(node, Literal):
            return Uint(node.value) if node.unsigned and isinstance(node.value, int) else node.value
        if isinstance(node, ListLiteral) and not node.optional:
            # The type of an element of type dyn is unknown.
            return [UnknownArgument(DYN) if self.types[each.id] == DYN else self.known(each) for each in node.elements]
        unknown = UnknownArgument(self.substitute(self.types[node.id]))
        reference = self.references.get(node.id)
        if not isinstance(reference, CallReference) or reference.function not in FOLDED:
            return unknown
        values = tuple([self.known(each) for each in children(node)])
        if not all(each.__class__ in _TRIED for each in values):
            return unknown
        try:
            return self.folded(choose(reference.overloads, values), values)
        except EvaluationError:
            return unknown  # reported at that element

    def try_literals(self, node: Call, overloads: Sequence[Overload], arguments: Sequence[Expr | None]) -> None:
        """Report a call with literals that always fails, before the first evaluation.

        Functions only, as in Kubernetes: an operator (`1/0`) may be in a branch that is never taken.
        """
        nodes = [each for each in arguments if each is not None]
        values = [self.known(each) for each in nodes]
        overload = overloads[0]
        if overload.validate is not None:
            try:
                overload.validate(tuple(values))
            except InvalidLiteralError as fault:
                at: Expr = node
                for step in fault.path:
                    at = (nodes if at is node else children(at))[step]
                self.complain(fault.message, at, end=max(at.end, at.position + 1))
            else:
                if overload.states is not None and isinstance(values[1], str):
                    span = self.source.span(nodes[1].start, nodes[1].end)
                    charge(values[1], overload.states(values[1]), span)
            return
        if not overload.pure or overload.result.name in ("list", "map"):
            return
        if all(each.__class__ in _TRIED and not (isinstance(each, str) and len(each) > 256) for each in values):
            dynamic = any(self.types[each.id] == DYN for each in nodes)
            if dynamic and node.function not in FOLDED:
                return
            try:
                if dynamic:
                    overload = choose(overloads, tuple(values))
                self.folded(overload, tuple(values))
            except EvaluationError as error:
                if error.final:
                    return  # the budget for constants is spent
                at = node.args[0] if len(node.args) == 1 else node
                self.complain(error.message, at, end=max(at.end, at.position + 1))

    def folded(self, overload: Overload, values: tuple[object, ...]) -> object:
        """Return the value of a call with constants, within the budget for all of them."""
        if self.folding is None:
            self.folding = Folding()
        return self.folding.evaluate(overload, values)

    def no_overload(self, node: Call, function: Function, types: Sequence[Type]) -> Type:
        """Report that no overload accepts these types."""
        if self.lenient:
            self.references[node.id] = CallReference(function.name, function.overloads, len(types) == len(node.args))
            return DYN
        call = FailedCall(node, function, [self.substitute(each) for each in types])
        message, help_ = overload_errors.no_overload(call)
        return self.complain(message, node, end=node.position + max(1, len(call.symbol)), help=help_)

    def logical(self, node: Call, types: Sequence[Type]) -> Type:
        wrong = next((each for each in types if not self.assignable(each, BOOL)), None)
        if wrong is None:
            return BOOL
        symbol = SYMBOLS[node.function]
        return self.complain(
            f"`{symbol}` does not take `{self.shown(types[0])}` and `{self.shown(types[1])}`", node,
            end=node.position + len(symbol), help="both sides must be bool",
        )  # fmt: skip

    def conditional(self, node: Call, types: Sequence[Type]) -> Type:
        condition, first, second = types
        if not self.assignable(condition, BOOL):
            return self.complain(f"the condition of `?:` must be bool, not `{self.shown(condition)}`", node)
        result = self.fresh()
        if self.all_assignable((first, second), (result, result)):
            return self.substitute(result)
        return self.complain(
            f"the branches of `?:` must have one type, not `{self.shown(first)}` and `{self.shown(second)}`", node,
            help="convert one of them, or put `dyn()` around both",
        )  # fmt: skip

    def index(self, node: Call, types: Sequence[Type]) -> Type:
        """Check `_[_]` and `_[?_]`: of lists, maps, objects that allow it, and optionals of them."""
        type_, key = types
        optional = node.function == "_[?_]"
        inner = type_
        if type_.name == "optional_type" and not type_.variable:
            inner = self.substitute(type_.parameters[0])
            optional = True
        result: Type | None = None
        function = self.environment.functions.get("_[_]")
        declared = self.environment.types.get(inner.name)
        if inner == DYN or inner.variable:
            result = DYN
            if function is not None and not optional:
                self.references[node.id] = CallReference("_[_]", function.overloads)
        elif declared is not None:
            if declared.index is not None and self.assignable(key, STRING):
                literal = node.args[1]
                known = declared.fields.get(literal.value) if isinstance(literal, Literal) else None  # type: ignore[arg-type]
                result = declared.index if known is None else known.type
        elif inner.name == "list":
            result = inner.parameters[0] if self.assignable(key, INT) else None
        elif inner.name == "map":
            result = inner.parameters[1] if self.assignable(key, inner.parameters[0]) else None
        if result is None:
            hint = ""
            if declared is not None and declared.index is None:
                hint = "its fields are read with a dot"
            elif inner.name == "list":
                hint = "an index is an int"
            elif inner.name == "map":
                hint = f"its keys are `{self.shown(inner.parameters[0])}`"
            return self.complain(f"`{self.shown(type_)}` cannot be indexed with `{self.shown(key)}`", node, help=hint)
        if function is not None and not optional and inner.name in ("list", "map"):
            chosen = tuple(each for each in function.overloads if each.parameters[0].name == inner.name)
            self.references[node.id] = CallReference("_[_]", chosen)
        result = self.substitute(result)
        return optional_of(result) if optional and result.name != "optional_type" else result

    # -- macros --------------------------------------------------------------------------------------------------

    def elements(self, node: Comprehension, type_: Type) -> tuple[Type, Type] | None:
        """Return the types of the two variables (index or key, element or value), None after an error."""
        if type_ == ERROR:
            return None
        if type_ == DYN or type_.variable:
            return DYN, DYN
        if type_.name == "list" and (node.macro is not Macro.SORT_BY or node.variable2 is None):
            return INT, type_.parameters[0]
        if type_.name == "map" and node.macro is not Macro.SORT_BY:
            return type_.parameters[0], type_.parameters[1]
        accepted = "a list" if node.macro is Macro.SORT_BY else "a list or a map"
        self.complain(
            f"`{node.macro.value}` runs over {accepted}, not `{self.shown(type_)}`", node.range,
            end=max(node.range.end, node.range.position + 1),
        )  # fmt: skip
        return None

    def check_comprehension(self, node: Comprehension) -> Type:
        over = self.substitute(self.check(node.range))
        self.loops += 1
        if self.loops > self.environment.limits.comprehensions:
            self.complain(
                f"comprehensions nest more than {self.environment.limits.comprehensions} deep", node,
                help="each level multiplies the cost: split it up into variables", code="cel-cost",
            )  # fmt: skip
        pair = self.elements(node, over)
        first, second = pair or (ERROR, ERROR)
        if node.variable2 is None:
            element = second if over.name == "list" else first
            self.locals.append((node.variable, element))
        else:
            element = second
            self.locals += [(node.variable, first), (node.variable2, second)]
        failed = pair is None
        if node.predicate is not None:
            predicate = self.substitute(self.check(node.predicate))
            failed = failed or predicate == ERROR
            if predicate != ERROR and not self.assignable(predicate, BOOL):
                failed = True
                self.complain(
                    f"the condition of `{node.macro.value}` must be bool, not `{self.shown(predicate)}`",
                    node.predicate, end=max(node.predicate.end, node.predicate.position + 1),
                )  # fmt: skip
        transform = DYN
        if node.transform is not None:
            transform = self.substitute(self.check(node.transform))
            failed = failed or transform == ERROR
        del self.locals[-1 if node.variable2 is None else -2 :]
        self.loops -= 1
        return ERROR if failed else self.result(node, first, element, transform)

    def result(self, node: Comprehension, key: Type, element: Type, transform: Type) -> Type:
        """Return the type of a comprehension without errors."""
        match node.macro:
            case Macro.ALL | Macro.EXISTS | Macro.EXISTS_ONE:
                return BOOL
            case Macro.FILTER:
                return list_of(element)
            case Macro.MAP | Macro.TRANSFORM_LIST:
                return list_of(transform)
            case Macro.TRANSFORM_MAP:
                return map_of(key, transform)
        assert node.transform is not None
        end = max(node.transform.end, node.transform.position + 1)
        if node.macro is Macro.TRANSFORM_MAP_ENTRY:
            if transform == DYN or transform.variable:
                return map_of(DYN, DYN)
            if transform.name == "map":
                return transform
            return self.complain(
                f"`transformMapEntry` makes a map with one entry, not `{self.shown(transform)}`", node.transform,
                end=end, help="write `{key: value}`",
            )  # fmt: skip
        if transform in (DYN, *_ORDERED) or transform.variable:
            return list_of(element)
        return self.complain(
            f"`sortBy` cannot order by `{self.shown(transform)}`", node.transform, end=end,
            help="order by a number, a string, a bool, a timestamp or a duration",
        )  # fmt: skip

    def check_bind(self, node: Bind) -> Type:
        if "cel.bind" not in self.environment.functions:
            span = self.source.span(node.start, node.start + len("cel"))
            self.problems.append(Problem(
                "`cel.bind` is not available here", span, "write the value out where it is read", code="cel-name",
            ))
            return ERROR
        self.locals.append((node.variable, self.substitute(self.check(node.init))))
        type_ = self.check(node.body)
        self.locals.pop()
        return type_

    def check_optional_map(self, node: OptionalMap) -> Type:
        target = self.substitute(self.check(node.target))
        inner = target
        name = "optFlatMap" if node.flat else "optMap"
        if target.name == "optional_type" and not target.variable:
            inner = target.parameters[0]
        elif target in (DYN, NULL) or target.variable:
            inner = DYN
        elif target != ERROR:
            inner = self.complain(
                f"`{name}` works on an optional, not on `{self.shown(target)}`", node,
                help="`x.?y` or `optional.of(x)` give one",
            )  # fmt: skip
        self.locals.append((node.variable, inner))
        body = self.substitute(self.check(node.body))
        self.locals.pop()
        if ERROR in (inner, body):
            return ERROR
        if not node.flat:
            return optional_of(body)
        if body.name == "optional_type" and not body.variable:
            return body
        if body == DYN or body.variable:
            return optional_of(DYN)
        return self.complain(
            f"`optFlatMap` makes an optional, not `{self.shown(body)}`", node.body,
            end=max(node.body.end, node.body.position + 1), help="use `optMap`, or `x.?y` for an optional field",
        )  # fmt: skip

    # -- the whole -----------------------------------------------------------------------------------------------

    def check_result(self, root: Expr, type_: Type, expected: Type | tuple[Type, ...] | None) -> None:
        type_ = self.substitute(type_)
        if expected is None or type_ == ERROR:
            return
        allowed = expected if isinstance(expected, tuple) else (expected,)
        if allowed == (DYN,):
            return
        if type_ == DYN or type_.variable:
            if DYN in allowed:
                return
        elif any(each != DYN and self.assignable(type_, each) for each in allowed):
            return
        names = " or ".join(show(each) for each in allowed if each != DYN)
        help_ = ""
        if type_ == DYN and BOOL in allowed:
            help_ = "its type is only known at run time: write `== true`"
        elif type_ == DYN:
            convert = next((each.name for each in allowed if each.name in ("int", "double", "string")), "")
            help_ = f"its type is only known at run time: write `{convert}(...)`" if convert else ""
        elif type_ in _NUMBERS and any(each.name == "map" for each in allowed):
            help_ = "write a map with a name for the number, such as `{'cpu': ...}`"
        elif BOOL in allowed and type_ in (INT, UINT, DOUBLE, STRING):
            help_ = "compare it with something"
        elif type_ == BOOL and not _NUMBERS.isdisjoint(allowed):
            help_ = "`condition ? 1 : 0` makes a number of it"
        elif type_ == DOUBLE and INT in allowed:
            help_ = "write `int(...)`, which truncates"
        span = self.source.span(root.start, max(root.end, root.start + 1))
        self.problems.append(Problem(f"must be {names}, not {self.shown(type_)}", span, help_, code="cel-type"))


_LITERAL_TYPES: Final[dict[type, Type]] = {bool: BOOL, int: INT, float: DOUBLE, str: STRING, bytes: BYTES}
_TRIED: Final = frozenset((str, int, float, bool, bytes, Uint))
_CHECKS: Final[dict[type, Callable[[_Checker, Any], Type]]] = {
    Literal: _Checker.check_literal,
    Ident: _Checker.check_ident,
    Select: _Checker.check_select,
    Call: _Checker.check_call,
    ListLiteral: _Checker.check_list,
    MapLiteral: _Checker.check_map,
    MessageLiteral: _Checker.check_message,
    Comprehension: _Checker.check_comprehension,
    Bind: _Checker.check_bind,
    OptionalMap: _Checker.check_optional_map,
}
_BUILTIN: Final[dict[str, Callable[[_Checker, Call, Sequence[Type]], Type]]] = {
    "_&&_": _Checker.logical,
    "_||_": _Checker.logical,
    "_?_:_": _Checker.conditional,
    "_[_]": _Checker.index,
    "_[?_]": _Checker.index,
}


def _listed(before: str, names: Sequence[str], *, most: int = MOST_SHOWN) -> str:
    shown = ", ".join(f"`{each}`" for each in names[:most])
    return f"{before} {shown}" + (", ..." if len(names) > most else "")
