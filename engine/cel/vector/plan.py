"""One pass that answers an expression for all rows.

An expression is split once, when its plan is made:

- what no row variable is part of is evaluated once, by row;
- numbers of the frame's numeric columns are computed with numpy (`vectors`);
- anything else is evaluated once per *distinct input*: the paths that it reads are dictionary-encoded, the row
  evaluator answers per code, the answers are gathered by code.

The result vouches for some rows. All others are evaluated by row, whole, and that answer stands, value or error: the
columns know nothing of errors. Results are kept while what they depend on stays as it is, and brought up to date for
the rows that changed.
"""

from __future__ import annotations

import contextlib
import enum
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from ..check.analysis import column_path, is_pure, outermost, split_reads, sub_expression
from ..check.checked_ast import CallReference, Checked, DefinitionReference, Path, reads_of
from ..check.environment import Scope, Variable
from ..check.substitution import looks_up, with_text
from ..check.types import BOOL, DOUBLE, DYN, INT
from ..scalar.budget import Budget, ExhaustedError, exhausted
from ..scalar.program import Program
from ..scalar.values import EvaluationError
from ..syntax.ast import Call, Comprehension, Expr, ListLiteral, Literal, Macro
from .codegen import CannotFuse, Fused, Term, Writing
from .encoding import Absent, is_number, key_of, value_at
from .frame import Column, Frame, Numbers, Rows
from .row_frame import RowFrame
from .some_rows import SomeRows
from .vectors import (
    OPERATORS,
    UNKNOWN,
    Failure,
    Mask,
    NotColumnar,
    Operand,
    Unknown,
    Vector,
    alike,
    and_masks,
    choose,
    decided,
    invert,
    to_double,
    vectorized,
    within,
)

__all__ = ["KEPT_BYTES", "BoundPlan", "ColumnPlan", "Known", "RowFrame", "Strategy", "evaluate", "plan_of"]

KEPT_BYTES: Final = 64 * 1024 * 1024
"""How much the results kept for one cluster may take, in all."""

_FEW_ROWS: Final = 24
"""So many rows are evaluated by row sooner than by column."""
_FEW_CHANGES: Final = 8
"""So many rows of a kept column are evaluated anew by row sooner than all of them by column."""
_LONGEST_LIST: Final = 32
_MOST_PARTS: Final = 200
"""Terms that one expression is split up into: each may become a program of its own."""
_MOST_TEXTS: Final = 16
"""Turns of a loop that are answered one by one."""
_MOST_BODIES: Final = 256
_MANY: Final = 4
"""Where no more than one row in so many is asked for, only these are looked at."""
_KEPT: Final = "columns"
_READS: Final = "reads"


def evaluate(program: Program, frame: Frame, rows: Rows | None = None) -> Column:
    """Return the program's value for all rows of the frame, or for `rows` (ascending).

    The column has one place per row that was asked for; errors go by row of the frame. Not to be written: it may be
    kept.
    """
    return program.by_column(plan_of(program.checked)).column(frame, rows)


class RequestedRows:
    """The rows that a decision asks for: operands hold for these, and may hold for no others."""

    __slots__ = ("memo", "partial", "rows")

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.memo: dict[object, object] = {}
        self.partial = False
        """Whether some row that is not asked for was left out."""


class VectorContext:
    """One evaluation of one frame: what its parts have in common."""

    __slots__ = ("_results", "frame", "memo", "numbers", "operands", "requested", "size")

    def __init__(self, frame: Frame, rows: Rows | None = None) -> None:
        """`rows` are those that are asked for; None: all."""
        self.frame = frame
        self.size = frame.size
        self.memo = frame.memo
        self.numbers = frame.moment(None)
        """Numeric columns: other expressions read them too."""
        self.requested: RequestedRows | None = None
        self.operands = self.memo
        """What parts and variables are, in the rows that are asked for."""
        if rows is not None:
            # The expressions of a decision mostly ask for the same rows: what they share is computed once.
            requested = self.memo.get(RequestedRows)
            if not isinstance(requested, RequestedRows) or requested.rows is not rows:
                requested = self.memo[RequestedRows] = RequestedRows(rows)
            self.requested = requested
            self.operands = requested.memo
        self._results: ColumnCache | None = None

    @property
    def results(self) -> ColumnCache:
        """What is kept of the frame's rows."""
        if self._results is None:
            kept = self.frame.kept
            results = kept.get(_KEPT)
            if results is None:
                results = kept[_KEPT] = ColumnCache(KEPT_BYTES)
            assert isinstance(results, ColumnCache)
            self._results = results
        return self._results

    def decision_key(self, paths: Sequence[Path], declared: Mapping[str, Variable]) -> Hashable:
        """Return what is equal for decisions in which these values are."""
        memo, keys = self.memo, []
        for path in paths:
            key = memo.get(path)
            if key is None:
                try:
                    value = value_at(self.frame.value(path[0]), path[1:])
                    is_constant = declared[path[0]].scope is Scope.CONSTANT
                    key = self.results.constant_key(path, value) if is_constant else key_of(value)
                except KeyError:
                    key = Absent(-1)
                memo[path] = key
            keys.append(key)
        return tuple(keys)


class Strategy(enum.Enum):
    """How a part of an expression is answered for all rows."""

    CONSTANT = "constant"
    DECISION = "once per decision"
    NUMBERS = "numeric column"
    COLUMN = "by column"
    DISTINCT = "once per distinct input"
    VARIABLE = "variable"
    ROW = "row by row"


class Operator(Protocol):
    """A part of an expression that answers for all rows at once."""

    strategy: ClassVar[Strategy]

    def run(self, context: VectorContext, /) -> Operand:
        """Return one value for all rows, a vector, or `UNKNOWN`; raise `NotColumnar`."""
        ...

    def fuse(self, writing: Writing, /) -> Term:
        """Write the part down where nothing can fail; raise `CannotFuse` (see `fused`)."""
        ...

    def reads(self, context: VectorContext, /) -> frozenset[Path]:
        """Return the ROW paths that the values hang on, as the decision's own values are."""
        ...


# --- kept results ----------------------------------------------------------------------------------------------------


class CachedColumn:
    """A column that was computed, and the stamp of what it was computed from."""

    __slots__ = ("column", "holds", "stamp")

    def __init__(self, column: Column, stamp: int, holds: Mask | None) -> None:
        """`holds` says for which rows the column does; None: for all."""
        self.column = column
        self.stamp = stamp
        self.holds = holds

    def answers(self, rows: Rows | None) -> bool:
        """Whether the column holds for these rows; None: for all."""
        return self.holds is None or (rows is not None and bool(self.holds[rows].all()))


class ColumnCache:
    """What was computed before, the least recently used going first; bounded in bytes."""

    __slots__ = ("_bytes", "_constants", "_entries", "_limit", "_sizes", "inputs", "seen")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._entries: OrderedDict[Hashable, CachedColumn | DistinctResults] = OrderedDict()
        self._sizes: dict[Hashable, int] = {}
        self._constants: dict[Path, tuple[object, Hashable]] = {}
        self.inputs: dict[tuple[Path, ...], EncodedRows] = {}
        self.seen: set[int] = set()
        """Hashes of keys that were asked for once: what never comes again is not worth keeping."""

    def get(self, key: Hashable) -> CachedColumn | DistinctResults | None:
        """Return what is kept under a key."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, key: Hashable, entry: CachedColumn | DistinctResults, size: int) -> None:
        """Keep something of about so many bytes."""
        self._bytes += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self._entries[key] = entry
        self._entries.move_to_end(key)
        while self._bytes > self._limit and len(self._entries) > 1:
            oldest, _ = self._entries.popitem(last=False)
            self._bytes -= self._sizes.pop(oldest)

    def constant_key(self, path: Path, value: object) -> Hashable:
        """Return the key of a CONSTANT value, which mostly is the object that it was before: a long list, say."""
        known = self._constants.get(path)
        if known is None or known[0] is not value:
            known = self._constants[path] = value, key_of(value)
        return known[1]

    def seen_before(self, key: Hashable) -> bool:
        """Whether the key was asked for before; the next time it was."""
        number = hash(key)
        if number in self.seen:
            return True
        if len(self.seen) > 10_000:
            self.seen.clear()
        self.seen.add(number)
        return False


# --- distinct inputs -------------------------------------------------------------------------------------------------


class EncodedRows:
    """Rows encoded by everything that a part reads of them: equal codes, equal answers."""

    __slots__ = ("_columns", "_paths", "_table", "codes", "count", "stamp")

    def __init__(self, frame: Frame, paths: tuple[Path, ...], stamp: int) -> None:
        self._paths = paths
        self.stamp = stamp
        self._columns = [frame.codes(path).values for path in paths]
        self._table: dict[Hashable, int] = {}
        if len(paths) == 1:
            keys: Iterator[Hashable] = iter(self._columns[0].tolist())
        else:
            keys = zip(*(column.tolist() for column in self._columns), strict=True)
        table = self._table
        codes = [table.setdefault(key, len(table)) for key in keys]
        self.codes: NDArray[np.int32] = np.array(codes, dtype=np.int32)
        self.count = len(table)

    def refresh(self, frame: Frame, stamp: int, rows: Rows) -> bool:
        """Take over the rows that changed; return False where everything must be encoded anew."""
        for path, column in zip(self._paths, self._columns, strict=True):
            if frame.codes(path).values is not column:
                return False
        table, columns = self._table, self._columns
        for row in rows.tolist():
            key: Hashable = int(columns[0][row]) if len(columns) == 1 else tuple(int(each[row]) for each in columns)
            code = table.get(key)
            if code is None:
                code = table[key] = len(table)
            self.codes[row] = code
        self.count = len(table)
        self.stamp = stamp
        return self.count <= 2 * len(self.codes) + 64


def _encoded(context: VectorContext, paths: tuple[Path, ...], path_set: frozenset[Path]) -> EncodedRows:
    frame = context.frame
    known = context.results.inputs.get(paths)
    stamp = frame.stamp(path_set)
    if known is not None:
        if known.stamp == stamp:
            return known
        rows = frame.changed(path_set, known.stamp)
        if rows is not None and known.refresh(frame, stamp, rows):
            return known
    fresh = context.results.inputs[paths] = EncodedRows(frame, paths, stamp)
    return fresh


class DistinctResults:
    """What the row evaluator answered per code, so far; errors are answers too."""

    __slots__ = (
        "_by_code",
        "_complete_at",
        "_error",
        "_evaluated",
        "_fails",
        "_kind",
        "_valid",
        "_vector",
        "_vector_stamp",
        "inputs",
        "values",
    )

    def __init__(self, inputs: EncodedRows, kind: str) -> None:
        self.inputs = inputs
        self.values: list[object] = []
        self._kind = kind
        self._by_code: NDArray[Any] = np.empty(0, dtype=_DTYPES.get(kind, np.object_))
        self._valid: NDArray[np.bool_] = np.empty(0, dtype=np.bool_)
        """By code: whether there is an answer, and it is a value of the kind."""
        self._error: EvaluationError | None = None
        self._fails: NDArray[np.bool_] = np.empty(0, dtype=np.bool_)
        """By code: whether the answer is `_error`, the first that there was."""
        self._evaluated: NDArray[np.bool_] = np.empty(0, dtype=np.bool_)
        """By code: whether there is an answer in the arrays, a value or an error."""
        self._complete_at = -1
        """The stamp of the inputs at which every row had an answer."""
        self._vector: Vector | None = None
        self._vector_stamp = -1

    def extend(self) -> list[object]:
        """Make room for new codes; return the answers by code, `UNEVALUATED` where there is none yet."""
        known, count = len(self.values), self.inputs.count
        if count > known:
            self.values.extend([UNEVALUATED] * (count - known))
            if count > len(self._valid):
                # Twice as many as needed: inputs that come and go must not cost a copy each time.
                self._by_code = np.concatenate((self._by_code, np.zeros(2 * count, dtype=self._by_code.dtype)))
                self._valid = np.concatenate((self._valid, np.zeros(2 * count, dtype=np.bool_)))
                self._fails = np.concatenate((self._fails, np.zeros(2 * count, dtype=np.bool_)))
                self._evaluated = np.concatenate((self._evaluated, np.zeros(2 * count, dtype=np.bool_)))
        return self.values

    def complete(self, answer: Callable[[int], object], rows: Rows | None = None) -> bool:
        """Ask for the codes that rows, or these rows, have and nobody asked for yet.

        Return whether every row has an answer then.
        """
        inputs = self.inputs
        if self._complete_at == inputs.stamp:
            return True
        values, codes = self.extend(), inputs.codes
        open_rows = ~self._evaluated[codes]
        if rows is not None:
            wanted = np.zeros(len(codes), dtype=np.bool_)
            wanted[rows] = True
            wanted &= open_rows
        else:
            wanted = open_rows
        found = np.flatnonzero(wanted)
        everywhere = len(found) == np.count_nonzero(open_rows)
        answered: list[int] = []
        for code, row in dict(zip(codes[found].tolist(), found.tolist(), strict=True)).items():
            value = values[code]
            if value is UNEVALUATED:
                value = answer(row)
                if value.__class__ is ExhaustedError:
                    everywhere = False  # the next decision may ask
                    continue
                values[code] = value
            answered.append(code)
        if answered:
            self._evaluated[answered] = True
            self._take_over(answered)
            self._vector = None
        if everywhere:
            self._complete_at = inputs.stamp
        return everywhere

    def _take_over(self, codes: Sequence[int]) -> None:
        """Write answers into the arrays."""
        values = self.values
        for code in codes:
            value = values[code]
            if isinstance(value, EvaluationError) and not value.final:
                if self._error is None:
                    self._error = value
                self._fails[code] = alike(self._error, value)
        if self._kind == "?":
            kinds = {_letter(values[code]) for code in codes if not isinstance(values[code], EvaluationError)}
            if not kinds:
                return
            kind = kinds.pop() if len(kinds) == 1 else "O"
            if self._valid.any() and self._by_code.dtype.kind != kind:
                kind = "O"
            self._by_code = self._by_code.astype(_DTYPES.get(kind, np.object_))
        kind = self._by_code.dtype.kind
        for code in codes:
            value = values[code]
            if not isinstance(value, EvaluationError) and (kind == "O" or _letter(value) == kind):
                self._by_code[code] = value
                self._valid[code] = True

    def gathered(self, rows: Rows | None = None) -> Vector:
        """Return the answers of all rows; where these rows all have a value, nothing is said of the others."""
        inputs = self.inputs
        if rows is not None and self._complete_at != inputs.stamp:
            codes = inputs.codes
            if self._valid[codes[rows]].all():
                values = self._by_code[codes]
                if values.dtype.kind == "i":
                    return Vector(values, None, int(values.min(initial=0)), int(values.max(initial=0)))
                return Vector(values)
        if self._vector is None or self._vector_stamp != inputs.stamp:
            codes = inputs.codes
            valid = self._valid[codes]
            values = self._by_code[codes]
            mask = None if valid.all() else valid
            if values.dtype.kind == "i":
                self._vector = Vector(values, mask, int(values.min(initial=0)), int(values.max(initial=0)))
            else:
                self._vector = Vector(values, mask)
            if mask is not None and self._error is not None:
                self._vector = self._vector.failing(self._error, self._fails[codes])
            self._vector_stamp = inputs.stamp
        return self._vector

    @property
    def bytes(self) -> int:
        """About how much memory this takes."""
        return 500 + 100 * self.inputs.count + 9 * len(self.inputs.codes)


UNEVALUATED: Final = object()
_NO_PATHS: Final[frozenset[Path]] = frozenset()
_DTYPES: Final[Mapping[str, Any]] = {"b": np.bool_, "i": np.int64, "f": np.float64}


# --- parts -----------------------------------------------------------------------------------------------------------


class ScalarFallback:
    """A (part of an) expression, evaluated row by row; its program is made when a row is first asked for."""

    __slots__ = ("_call", "_checked", "_node", "_program", "_scopes")

    def __init__(self, checked: Checked, node: Expr) -> None:
        self._checked = checked
        self._node = node
        self._program: Program | None = None
        self._call: Callable[..., object] | None = None
        self._scopes: list[tuple[str, bool]] = []

    @property
    def program(self) -> Program:
        """The part as an expression of its own."""
        if self._program is None:
            self._program = Program.of(sub_expression(self._checked, self._node))
        return self._program

    def _prepare(self) -> Callable[..., object]:
        declared = self._checked.environment.variables
        self._scopes = [(name, declared[name].scope is Scope.ROW) for name in self.program.variables]
        self._call = self.program.call
        return self._call

    def once(self, frame: Frame) -> object:
        """Return the one value, or the `EvaluationError`, of what no row variable is part of."""
        call = self._call or self._prepare()
        meter = self.program.meter
        spent = meter.spent
        if spent:
            return self.reader(frame)(-1)
        try:
            value = call(*[frame.value(name) for name, _ in self._scopes])
        except EvaluationError as error:
            value = error
        except KeyError:  # a variable that is not given may not be read either
            return self.reader(frame)(-1)
        if meter.spent != spent:
            Budget.of(frame, self._checked).spend(meter.spent)
        return value

    def reader(self, frame: Frame) -> Callable[[int], object]:
        """Return what answers a row of this frame: a value or an `EvaluationError`."""
        call = self._call or self._prepare()
        program = self.program
        arguments: list[object] = []
        per_row: list[tuple[int, str]] = []
        incomplete = False
        for position, (name, is_row) in enumerate(self._scopes):
            if is_row:
                per_row.append((position, name))
                arguments.append(None)
                continue
            try:
                arguments.append(frame.value(name))
            except KeyError:
                incomplete = True
        row_value = frame.row_value
        meter, seen = program.meter, program.meter.spent
        budget: Budget | None = None
        spent_out = False
        if seen:
            budget = Budget.of(frame, self._checked)
            spent_out = budget.exhausted

        def answer(row: int) -> object:
            nonlocal budget, seen, spent_out
            # An expression that never spends anything need not stop for those that do.
            if spent_out and meter.spent:
                return exhausted(self._checked)
            complete = not incomplete
            if complete:
                try:
                    for position, name in per_row:
                        arguments[position] = row_value(name, row)
                except (EvaluationError, KeyError):
                    # A variable may have no value here, which matters only where it is read.
                    complete = False
            value: object
            try:
                value = call(*arguments) if complete else program.metered(_RowBindings(frame, row))[0]
            except EvaluationError as error:
                value = error
            if meter.spent != seen:
                budget = budget or Budget.of(frame, self._checked)
                budget.spend(meter.spent - seen)
                seen, spent_out = meter.spent, budget.exhausted
            return value

        return answer


class _RowBindings(dict[str, object]):
    """The variables of one row, each read when it is asked for."""

    __slots__ = ("_frame", "_row")

    def __init__(self, frame: Frame, row: int) -> None:
        super().__init__()
        self._frame = frame
        self._row = row

    def get(self, key: str, default: Any = None) -> Any:
        """Return a variable's value; raise `EvaluationError` where it has none in this row."""
        try:
            return self._frame.value(key)
        except KeyError:
            pass
        try:
            return self._frame.row_value(key, self._row)
        except KeyError:
            return default


class ConstantOperator:
    """A literal."""

    __slots__ = ("_value",)
    strategy: ClassVar[Strategy] = Strategy.CONSTANT

    def __init__(self, value: Any) -> None:
        self._value: Operand = value

    def run(self, _: VectorContext) -> Operand:
        return self._value

    def fuse(self, writing: Writing) -> Term:
        return writing.constant(self._value)

    def reads(self, _: VectorContext) -> frozenset[Path]:
        return _NO_PATHS


class DecisionOperator:
    """What is the same for all rows: evaluated once per decision."""

    __slots__ = ("_fallback", "_kind")
    strategy: ClassVar[Strategy] = Strategy.DECISION

    def __init__(self, checked: Checked, node: Expr) -> None:
        self._fallback = ScalarFallback(checked, node)
        self._kind = _KINDS.get(checked.types[node.id], "O")

    def value(self, context: VectorContext) -> object:
        """Return the value or the error."""
        memo = context.memo
        value = memo.get(self, UNEVALUATED)
        if value is UNEVALUATED:
            value = memo[self] = self._fallback.once(context.frame)
        return value

    def run(self, context: VectorContext) -> Operand:
        value = self.value(context)
        if isinstance(value, EvaluationError):
            return UNKNOWN if value.final else Failure(value)
        return value  # type: ignore[return-value]

    def fuse(self, writing: Writing) -> Term:
        return writing.input(self, self._kind, is_array=False)

    def reads(self, _: VectorContext) -> frozenset[Path]:
        return _NO_PATHS


class ColumnOperator:
    """A numeric column of the frame."""

    __slots__ = ("_fallback", "_key", "_kind", "_path")
    strategy: ClassVar[Strategy] = Strategy.NUMBERS

    def __init__(self, checked: Checked, node: Expr, path: Path, kind: str) -> None:
        self._fallback = ScalarFallback(checked, node)
        self._path = path
        self._kind = kind
        self._key = (path, kind)

    def run(self, context: VectorContext) -> Operand:
        memo = context.numbers
        key = self._key
        vector = memo.get(key)
        if vector is None:
            numbers = context.frame.numbers(self._path)
            if numbers is None:
                if self._kind == "?":
                    raise NotColumnar
                # By its type it should be a number: no row has one.
                nothing = np.zeros(context.size, dtype=_DTYPES[self._kind])
                numbers = Numbers(nothing, np.zeros(context.size, dtype=np.bool_))
            vector = Vector.of(numbers)
            found = vector.values.dtype.kind
            if self._kind == "f" and found == "i":
                vector = to_double(vector)
            elif self._kind not in ("?", found):
                raise NotColumnar
            memo[key] = vector
        assert isinstance(vector, Vector)
        return vector if vector.valid is None else self._failing(context, vector, vector.valid)

    def gathered(self, frame: Frame, rows: Rows, _: Known) -> Vector | None:
        """Return the column of these rows (of no overlay); None where one of them has no number of the kind."""
        moment = frame.moment(rows)
        vector = moment.get(self._key)
        if vector is None:
            numbers = frame.numbers(self._path)
            if numbers is not None and numbers.present is None and numbers.values.dtype.kind == self._kind:
                vector = moment[self._key] = Vector(numbers.values[rows], None, *(numbers.bounds or ()))
                vector.borrowed = True  # by all that are asked about these rows
            else:
                try:
                    vector = self.run(VectorContext(SomeRows(frame, rows)))
                except NotColumnar:
                    return None
        return vector if isinstance(vector, Vector) and vector.valid is None else None

    def fuse(self, writing: Writing) -> Term:
        return writing.input(self, self._kind, is_array=True)

    def reads(self, _: VectorContext) -> frozenset[Path]:
        return frozenset((self._path,))

    def _failing(self, context: VectorContext, vector: Vector, valid: Mask) -> Vector:
        """Return the column with the error of the first row that has no number, in all rows that are like it."""
        known = context.memo.get(self)
        if known is None:
            known = vector
            row = int(valid.argmin())
            value = self._fallback.reader(context.frame)(row)
            if isinstance(value, EvaluationError) and not value.final:
                codes = context.frame.codes(self._path).values
                known = vector.failing(value, (codes == codes[row]) & ~valid)
            context.memo[self] = known
        return known  # type: ignore[return-value]


class CallOperator:
    """A function that columns can compute."""

    __slots__ = ("_arguments", "_function")
    strategy: ClassVar[Strategy] = Strategy.COLUMN

    def __init__(self, function: Callable[..., Operand], arguments: Sequence[Operator]) -> None:
        self._function = function
        self._arguments = arguments

    def run(self, context: VectorContext) -> Operand:
        operands = [part.run(context) for part in self._arguments]
        error: EvaluationError | None = None
        failed: Mask | None = None
        certain: Mask | None = None
        some = False
        for operand in operands:
            if isinstance(operand, Vector):
                some = True
                if operand.valid is not None:
                    if error is None and operand.error is not None:
                        # The leftmost error is the result, where all that stands left of it has a value.
                        error, failed = operand.error, and_masks(certain, operand.failed)
                    certain = and_masks(certain, operand.valid)
            elif isinstance(operand, Failure):
                return Failure(operand.error, and_masks(certain, operand.rows))
            elif operand is UNKNOWN:
                return UNKNOWN if error is None else Failure(error, failed)
        if not some:  # both branches of a condition may have been the same for all rows
            operands[0] = Vector.full(context.size, operands[0])
        result = self._function(*operands)
        return result if error is None or not isinstance(result, Vector) else result.failing(error, failed)

    def fuse(self, writing: Writing) -> Term:
        return writing.call(self._function, self._arguments)

    def reads(self, context: VectorContext) -> frozenset[Path]:
        return _NO_PATHS.union(*(part.reads(context) for part in self._arguments))


class MembershipOperator:
    """`x in [1, 2, 3]`."""

    __slots__ = ("_item", "_numbers")
    strategy: ClassVar[Strategy] = Strategy.COLUMN

    def __init__(self, item: Operator, numbers: Sequence[int]) -> None:
        self._item = item
        self._numbers = numbers

    def run(self, context: VectorContext) -> Operand:
        item = self._item.run(context)
        if isinstance(item, Failure | Unknown):
            return item
        found = within(item, self._numbers)
        if isinstance(item, Vector) and isinstance(found, Vector) and item.error is not None:
            return found.failing(item.error, item.failed)
        return found

    def fuse(self, writing: Writing) -> Term:
        return writing.within(self._item, self._numbers)

    def reads(self, context: VectorContext) -> frozenset[Path]:
        return self._item.reads(context)


class LogicOperator:
    """A chain of `&&` or `||`; what is cheap is looked at first, and nothing more once all rows are decided."""

    __slots__ = ("_conjunction", "_parts")
    strategy: ClassVar[Strategy] = Strategy.COLUMN

    def __init__(self, parts: Sequence[Operator], *, conjunction: bool) -> None:
        rank = {ConstantOperator: 0, DecisionOperator: 1}
        self._parts = sorted(
            enumerate(parts), key=lambda each: rank.get(each[1].__class__, 2 if _columnar(each[1]) else 3),
        )
        self._conjunction = conjunction

    def run(self, context: VectorContext) -> Operand:
        conjunction = self._conjunction
        stop = not conjunction
        stopped: Mask | None = None
        """Rows that one operand has decided, whatever the others are (None: none)."""
        known: Mask | None = None
        """Rows in which all operands so far are known (None: all)."""
        failures: list[tuple[int, EvaluationError, Mask | None]] = []
        for position, part in self._parts:
            operand = part.run(context)
            if operand is stop:
                return stop
            if operand is conjunction:
                continue
            if isinstance(operand, Vector) and operand.values.dtype.kind == "b":
                true, false = decided(operand)
                hits = false if conjunction else true
                stopped = hits if stopped is None else stopped | hits
                if operand.valid is not None:
                    sure = operand.valid
                    if operand.error is not None and operand.failed is not None:
                        failures.append((position, operand.error, operand.failed))
                        sure = sure | operand.failed
                    known = and_masks(known, sure)
                if stopped.all():
                    return stop
            elif isinstance(operand, Failure):
                failures.append((position, operand.error, operand.rows))
                known = and_masks(known, operand.rows)
            else:
                known = np.zeros(context.size, dtype=np.bool_)
        if stopped is None and known is None and not failures:
            return conjunction
        return self._result(context.size, stopped, known, failures)

    def fuse(self, writing: Writing) -> Term:
        return writing.logic([part for _, part in self._parts], conjunction=self._conjunction)

    def reads(self, context: VectorContext) -> frozenset[Path]:
        stop = not self._conjunction
        parts = [part for _, part in self._parts]
        if any(part.run(context) is stop for part in parts if isinstance(part, ConstantOperator | DecisionOperator)):
            return _NO_PATHS  # that decides, whatever the others are
        return _NO_PATHS.union(*(part.reads(context) for part in parts))

    def _result(
        self, size: int, stopped: Mask | None, known: Mask | None,
        failures: Sequence[tuple[int, EvaluationError, Mask | None]],
    ) -> Operand:
        if stopped is None:
            stopped = np.zeros(size, dtype=np.bool_)
        values = ~stopped if self._conjunction else stopped
        if known is None and not failures:
            return Vector(values)
        if known is None:
            known = np.ones(size, dtype=np.bool_)
        neutral = known & ~stopped
        if not failures:
            return Vector(values, stopped | neutral)
        # Of several errors the leftmost is the result.
        _, error, rows = min(failures, key=lambda each: each[0])
        failed = neutral if rows is None else neutral & rows
        for _, _, more in failures:
            neutral = np.zeros(size, dtype=np.bool_) if more is None else neutral & ~more
        return Vector(values, stopped | neutral).failing(error, failed)


class ChoiceOperator:
    """`condition ? a : b`; a branch that no row takes is not looked at."""

    __slots__ = ("_condition", "_first", "_second")
    strategy: ClassVar[Strategy] = Strategy.COLUMN

    def __init__(self, condition: Operator, first: Operator, second: Operator) -> None:
        self._condition = condition
        self._first = first
        self._second = second

    def run(self, context: VectorContext) -> Operand:
        condition = self._condition.run(context)
        if condition is True:
            return self._first.run(context)
        if condition is False:
            return self._second.run(context)
        if isinstance(condition, Failure):
            return condition
        if not isinstance(condition, Vector) or condition.values.dtype.kind != "b":
            return UNKNOWN
        if condition.valid is None:
            if condition.values.all():
                return self._first.run(context)
            if not condition.values.any():
                return self._second.run(context)
        return choose(condition, self._first.run(context), self._second.run(context))

    def fuse(self, writing: Writing) -> Term:
        return writing.choose(self._condition, self._first, self._second)

    def reads(self, context: VectorContext) -> frozenset[Path]:
        parts = [self._condition, self._first, self._second]
        if isinstance(self._condition, ConstantOperator | DecisionOperator):
            taken = self._condition.run(context)
            parts = [self._first] if taken is True else [self._second] if taken is False else parts
        return _NO_PATHS.union(*(part.reads(context) for part in parts))


class DistinctOperator:
    """Anything else: asked of the row evaluator once per distinct input."""

    __slots__ = ("_decision", "_declared", "_fallback", "_kind", "_paths", "_paths_set")
    strategy: ClassVar[Strategy] = Strategy.DISTINCT

    def __init__(self, checked: Checked, node: Expr) -> None:
        self._fallback = ScalarFallback(checked, node)
        self._kind = _KINDS.get(checked.types[node.id], "O")
        rows, decision = split_reads(checked, reads_of(checked, node))
        self._paths = tuple(sorted(rows))
        self._paths_set = rows
        self._decision = decision
        self._declared = checked.environment.variables

    def run(self, context: VectorContext) -> Operand:
        operands, requested = context.operands, context.requested
        known = operands.get(self)
        if known is not None:
            return known  # type: ignore[return-value]
        answers = self.answers(context)
        rows = None if requested is None else requested.rows
        everywhere = answers.complete(self._fallback.reader(context.frame), rows)
        if requested is not None and not everywhere:
            requested.partial = True
        vector = operands[self] = answers.gathered(rows)
        return vector

    def fuse(self, _: Writing) -> Term:
        raise CannotFuse

    def reads(self, _: VectorContext) -> frozenset[Path]:
        return self._paths_set

    def answers(self, context: VectorContext) -> DistinctResults:
        """Return the answers so far."""
        key = (self, context.decision_key(self._decision, self._declared)) if self._decision else self
        inputs = _encoded(context, self._paths, self._paths_set)
        answers = context.results.get(key)
        if not isinstance(answers, DistinctResults) or answers.inputs is not inputs:
            answers = DistinctResults(inputs, self._kind)
            context.results.put(key, answers, answers.bytes)
        return answers


class UnrollOperator:
    """`all` or `exists` over texts that are the same for all rows: a chain of `&&` or `||` with a term for each."""

    __slots__ = ("_bodies", "_checked", "_conjunction", "_loop", "_otherwise", "_range")
    strategy: ClassVar[Strategy] = Strategy.COLUMN

    def __init__(self, checked: Checked, loop: Comprehension) -> None:
        self._checked = checked
        self._loop = loop
        self._conjunction = loop.macro is Macro.ALL
        self._range = DecisionOperator(checked, loop.range)
        self._otherwise = DistinctOperator(checked, loop)
        self._bodies: dict[str, Operator] = {}
        """What the body is for a text. The same texts come again: there are few selectors."""

    def run(self, context: VectorContext) -> Operand:
        value = self._range.value(context)
        if isinstance(value, EvaluationError):
            return self._range.run(context)
        if not isinstance(value, list | Mapping):
            return self._otherwise.run(context)
        items: Iterable[object] = value
        texts = [item for item in islice(items, _MOST_TEXTS + 1) if isinstance(item, str)]
        if len(texts) > _MOST_TEXTS or len(texts) < len(value):
            return self._otherwise.run(context)
        if not texts:
            return self._conjunction
        return LogicOperator([self._body(text) for text in texts], conjunction=self._conjunction).run(context)

    def fuse(self, _: Writing) -> Term:
        raise CannotFuse

    def reads(self, context: VectorContext) -> frozenset[Path]:
        return self._otherwise.reads(context)

    def _body(self, text: str) -> Operator:
        part = self._bodies.get(text)
        if part is None:
            if len(self._bodies) >= _MOST_BODIES:
                self._bodies.clear()
            part = self._bodies[text] = ColumnPlan(with_text(self._checked, self._loop, text)).part
        return part


def _unrolls(node: Expr, checked: Checked) -> TypeGuard[Comprehension]:
    return (
        isinstance(node, Comprehension) and node.macro in (Macro.ALL, Macro.EXISTS) and node.variable2 is None
        and checked.scopes[node.range.id] is not Scope.ROW and looks_up(checked, node)
    )


class GuardOperator:
    """A part that may turn out not to be of columns; then it is answered per distinct input."""

    __slots__ = ("_checked", "_node", "_otherwise", "part")
    strategy: ClassVar[Strategy] = Strategy.COLUMN

    def __init__(self, checked: Checked, node: Expr, part: Operator) -> None:
        self._checked = checked
        self._node = node
        self.part = part
        self._otherwise: DistinctOperator | None = None

    def run(self, context: VectorContext) -> Operand:
        try:
            return self.part.run(context)
        except NotColumnar:
            if self._otherwise is None:
                self._otherwise = DistinctOperator(self._checked, self._node)
            return self._otherwise.run(context)

    def fuse(self, writing: Writing) -> Term:
        return self.part.fuse(writing)

    def reads(self, context: VectorContext) -> frozenset[Path]:
        return self.part.reads(context)


class VariableOperator:
    """`variables.x`: evaluated once per decision, whoever reads it."""

    __slots__ = ("_plan", "_position")
    strategy: ClassVar[Strategy] = Strategy.VARIABLE

    def __init__(self, plan: ColumnPlan, position: int) -> None:
        self._plan = plan
        self._position = position

    def run(self, context: VectorContext) -> Operand:
        operands = context.operands
        operand = operands.get(self._plan)
        if operand is None:
            operand = operands[self._plan] = self._plan.operand(context)
        # The place of a definition's own fault lies in another text: here it is that of the name.
        if isinstance(operand, Failure):
            return Failure(self._here(operand.error), operand.rows)
        if isinstance(operand, Vector) and operand.error is not None:
            return operand.failing(self._here(operand.error), operand.failed)
        return operand  # type: ignore[return-value]

    def bind(self, frame: Frame) -> BoundPlan | None:
        """Return the variable, as `ColumnPlan.bind` does."""
        return self._plan.bind(frame)

    def fuse(self, writing: Writing) -> Term:
        # Ints are given with the bounds of what is there, which are narrower than those that follow from the text.
        if self._plan.kind == "f" and self._plan.is_fused():
            return writing.definition(self._plan.part)
        return writing.input(self, self._plan.kind, is_array=True)

    def reads(self, context: VectorContext) -> frozenset[Path]:
        memo, key = context.memo, (_READS, self._plan)
        found = memo.get(key)
        if found is None:
            found = memo[key] = self._plan.part.reads(context)
        return found  # type: ignore[return-value]

    def _here(self, error: EvaluationError) -> EvaluationError:
        return EvaluationError(error.message, offset=self._position, reason=error.reason)


_KINDS: Final = {BOOL: "b", INT: "i", DOUBLE: "f", DYN: "?"}
_CLASSES: Final = {"b": bool, "i": int, "f": float}


def _columnar(part: Operator) -> bool:
    return not isinstance(part.part if isinstance(part, GuardOperator) else part, DistinctOperator)


# --- plans -----------------------------------------------------------------------------------------------------------


class BoundPlan:
    """An expression of which all but numeric columns is known: one fused function, and what it is given.

    It keeps nothing of a frame, and holds in all that have the same CONSTANT and DECISION values.
    """

    __slots__ = ("_doubles", "_fused", "_given", "_inputs", "_kind")

    def __init__(
        self, fused: Fused, kind: str, given: list[Any], inputs: Sequence[tuple[int, ColumnOperator | BoundPlan]], *,
        doubles: bool,
    ) -> None:
        """`inputs` are the columns, each with the place in `given` of its values, lowest and highest."""
        self._fused = fused
        self._kind = kind
        self._given = given
        self._inputs = inputs
        self._doubles = doubles

    def values(self, frame: Frame, rows: Rows, known: Known) -> NDArray[Any] | None:
        """Return the values of these rows (of no overlay) in a new array; None where something is missing or may fail.

        `known` is what was found out about the same rows of the same frame: variables are computed once.
        """
        given = self._given.copy()
        for at, column in self._inputs:
            vector = column.gathered(frame, rows, known)
            if vector is None:
                return None
            given[at] = vector.values
            given[at + 1] = vector.low
            given[at + 2] = vector.high
        if not self._doubles:
            return self._fused(*given)
        with np.errstate(all="ignore"):
            return self._fused(*given)

    def gathered(self, frame: Frame, rows: Rows, known: Known) -> Vector | None:
        """Return the values as a column that others are computed of."""
        if self in known:
            return known[self]
        values, vector = self.values(frame, rows, known), None
        if values is not None and values.dtype.kind == self._kind and len(values):
            vector = _computed_vector(values, self._kind)
        known[self] = vector
        return vector


def _computed_vector(values: NDArray[Any], kind: str) -> Vector:
    """Return computed values as a column that others are computed of; ints with the bounds of what is there."""
    if kind != "i" or not len(values):
        return Vector(values)
    return Vector(values, None, int(values.min()), int(values.max()))


Known: TypeAlias = dict[BoundPlan, Vector | None]
"""The variables that were computed of the same rows of the same frame."""


class AdaptedFunction(NamedTuple):
    """A function for values of unknown type that have the kinds they had when it was made; None where there is none."""

    fused: Fused | None
    inputs: list[tuple[Operator, str, bool]]
    doubles: bool


class ColumnPlan:
    """How one expression is answered by column. Made once per expression; holds no values."""

    __slots__ = (
        "__weakref__",
        "_adapted",
        "_checked",
        "_decision",
        "_declared",
        "_doubles",
        "_fallback",
        "_fused",
        "_inputs",
        "_parts",
        "_pure",
        "_row_paths",
        "_whole",
        "kind",
        "numeric",
        "part",
    )

    def __init__(self, checked: Checked) -> None:
        self._checked = checked
        self._parts = 0
        self._fallback = ScalarFallback(checked, checked.root)
        self._row_paths, self._decision = split_reads(checked, checked.reads)
        self._declared = checked.environment.variables
        self._pure: bool | None = None
        self._whole: DistinctOperator | None = None
        self._inputs: list[tuple[Operator, str, bool]] | None = None
        self._fused: Fused | None = None
        self._doubles = False
        self._adapted: AdaptedFunction | None = None
        self.kind = _KINDS.get(checked.type, "O")
        """numpy's letter of its values; `?` where they may be of several kinds, `O` where they are no numbers."""
        self.numeric = True
        """Whether nothing is answered once per distinct input: then a few rows cost what they are, without more."""
        self.part: Operator = self._guarded(checked.root)

    def column(self, frame: Frame, rows: Rows | None = None) -> Column:
        """Return the values of all rows, or of `rows`; see `evaluate`."""
        if rows is not None and self._fused is not None and self._is_alone(rows, frame) and frame.beneath is None:
            return self._of_some(frame, rows)
        beneath = frame.beneath
        if beneath is not None:
            return self._over(frame, *beneath, rows)
        size = frame.size
        count = size if rows is None else len(rows)
        pure = self._is_pure()
        if self._checked.scope is not Scope.ROW:
            return self._everywhere(frame, rows) if pure else self._row_by_row(frame, rows)
        alone = pure and rows is not None and self._is_alone(rows, frame)
        if not pure or (count <= _FEW_ROWS and not (alone and self.is_fused())):
            return self._row_by_row(frame, rows)
        if rows is None:
            return self._of_all(frame, None)
        if alone:
            return self._of_some(frame, rows)
        column = self._of_all(frame, rows)
        errors = {row: column.errors[row] for row in rows.tolist() if row in column.errors} if column.errors else {}
        return Column(column.values[rows], errors)

    def reads(self, frame: Frame) -> frozenset[Path]:
        """Return the ROW paths that the answers hang on, as the decision's own values are: not all that it names."""
        return outermost(self.part.reads(VectorContext(frame)))

    def bind(self, frame: Frame) -> BoundPlan | None:
        """Return what answers in every frame with this one's CONSTANT and DECISION variables, where it takes no more.

        That is a numeric expression of numeric columns. What is returned keeps nothing of the frame.
        """
        memo, key = frame.memo, (BoundPlan, self)
        if key not in memo:
            memo[key] = self._bind(frame)
        return memo[key]  # type: ignore[return-value]

    def _bind(self, frame: Frame) -> BoundPlan | None:
        if not self.is_fused():
            return None
        assert self._fused is not None
        context = VectorContext(frame)
        given: list[Any] = []
        inputs: list[tuple[int, ColumnOperator | BoundPlan]] = []
        for part, kind, _ in self._inputs or ():
            column = part.bind(frame) if isinstance(part, VariableOperator) else part
            if isinstance(column, ColumnOperator | BoundPlan):
                inputs.append((len(given), column))
                given += (None, None, None)
                continue
            value = column.value(context) if isinstance(column, DecisionOperator) else None
            if not _is_of_kind(value, kind):
                return None
            given += (value, value, value)
        return BoundPlan(self._fused, self.kind, given, inputs, doubles=self._doubles)

    # How columns come about

    def _is_pure(self) -> bool:
        if self._pure is None:
            self._pure = is_pure(self._checked)
        return self._pure

    def _is_alone(self, rows: Rows, frame: Frame) -> bool:
        """Whether rows are so few that nothing but them is looked at."""
        return self.numeric and len(rows) * _MANY <= frame.size

    def _of_some(self, frame: Frame, rows: Rows) -> Column:
        """Return the column of rows from columns of these rows alone."""
        found, _ = self._fresh(VectorContext(SomeRows(frame, rows)))
        if not found.errors:
            return found
        return Column(found.values, {int(rows[place]): error for place, error in found.errors.items()})

    def _of_all(self, frame: Frame, rows: Rows | None) -> Column:
        """Return the column of all rows, in which those that were not asked for may be missing."""
        if rows is not None and len(rows) == frame.size:
            rows = None
        context = VectorContext(frame, rows)
        key = (self, context.decision_key(self._decision, self._declared)) if self._decision else self
        stamp = frame.stamp(self._row_paths)
        kept = context.results.get(key)
        if isinstance(kept, CachedColumn) and kept.answers(rows):
            column = self._up_to_date(kept, frame, stamp, rows)
            if column is not None:
                return column
        column, answered = self._fresh(context)
        if answered and (not self._decision or context.results.seen_before(key)):
            holds: Mask | None = None
            if rows is not None and context.requested is not None and context.requested.partial:
                holds = np.zeros(frame.size, dtype=np.bool_)
                holds[rows] = True
            context.results.put(key, CachedColumn(column, stamp, holds), _bytes_of(column))
        return column

    def _everywhere(self, frame: Frame, rows: Rows | None) -> Column:
        """Return the column of what is the same for all rows."""
        value = frame.memo.get(self, UNEVALUATED)
        if value is UNEVALUATED:
            value = frame.memo[self] = self._fallback.once(frame)
        size = frame.size if rows is None else len(rows)
        if isinstance(value, EvaluationError):
            failed = range(size) if rows is None else rows.tolist()
            return Column(np.zeros(size, np.object_), dict.fromkeys(failed, value))
        return Column(_filled(size, value).values)

    def is_fused(self) -> bool:
        """Whether there is one function for the whole expression."""
        if self._inputs is None:
            writing = Writing()
            if self._is_pure():
                with contextlib.suppress(CannotFuse):
                    self._fused = writing.function(self.part)
            self._inputs, self._doubles = writing.inputs, writing.doubles
        return self._fused is not None

    def _adapt(self, context: VectorContext) -> AdaptedFunction:
        """Return one function for the whole expression, for the kinds that values of unknown type have at present."""

        def kind_of(part: Operator) -> str:
            try:
                operand = part.run(context)
            except NotColumnar:
                raise CannotFuse from None
            return operand.values.dtype.kind if isinstance(operand, Vector) else _letter(operand)

        writing = Writing(kind_of)
        fused: Fused | None = None
        if self._is_pure():
            with contextlib.suppress(CannotFuse):
                fused = writing.function(self.part)
        return AdaptedFunction(fused, writing.inputs, writing.doubles)

    def _computed(self, context: VectorContext) -> NDArray[Any] | None:
        """Return the values of all rows where every one can be computed and nothing fails; else None."""
        fused, inputs, doubles = self._fused, self._inputs, self._doubles
        if fused is None and self.is_fused():
            fused, inputs, doubles = self._fused, self._inputs, self._doubles
        if fused is None:
            if self._adapted is None:
                self._adapted = self._adapt(context)
            fused, inputs, doubles = self._adapted
            if fused is None:
                return None
        arguments: list[Any] = []
        for part, kind, is_array in inputs or ():
            try:
                operand = part.run(context)
            except NotColumnar:
                return None
            if not is_array:
                if not _is_of_kind(operand, kind):
                    return None
                arguments += (operand, operand, operand)
            elif isinstance(operand, Vector) and operand.valid is None and operand.values.dtype.kind == kind:
                arguments += (operand.values, operand.low, operand.high)
            else:
                return None
        if not doubles:
            return fused(*arguments)
        with np.errstate(all="ignore"):
            return fused(*arguments)

    def operand(self, context: VectorContext) -> Operand:
        """Return what the expression is in all rows, for expressions that read it as a variable."""
        values = self._computed(context)
        return self.part.run(context) if values is None else _computed_vector(values, self.kind)

    def _fresh(self, context: VectorContext) -> tuple[Column, bool]:
        """Return the column, and whether all rows that are asked for have their answers in it."""
        computed = self._computed(context)
        if computed is not None:
            return Column(computed), True
        size = context.size
        with np.errstate(all="ignore"):
            operand = self.part.run(context)
        if isinstance(operand, Vector):
            vector = operand
        elif isinstance(operand, Failure | Unknown):
            vector = Vector(np.zeros(size, dtype=_dtype(self._checked)), np.zeros(size, dtype=np.bool_))
            if isinstance(operand, Failure):
                failed = np.ones(size, dtype=np.bool_) if operand.rows is None else operand.rows
                vector = vector.failing(operand.error, failed)
        else:
            vector = _filled(size, operand)
        values = vector.values.copy() if vector.borrowed else vector.values
        if vector.valid is None:
            return Column(values), True
        doubtful, column = ~vector.valid, Column(values)
        if vector.error is not None and vector.failed is not None:
            column = Column(values, dict.fromkeys(np.flatnonzero(vector.failed).tolist(), vector.error))
            doubtful &= ~vector.failed
        handed, requested = np.flatnonzero(doubtful), context.requested
        if requested is not None:
            wanted = np.intersect1d(handed, requested.rows, assume_unique=True)
            if len(wanted) < len(handed):
                requested.partial = True
            handed = wanted
        return self._handed_over(context, column, handed) if len(handed) else (column, True)

    def _handed_over(self, context: VectorContext, column: Column, rows: Rows) -> tuple[Column, bool]:
        """Return the column, with the row evaluator's answers in these rows, and whether it was asked for all."""
        answer = self._fallback.reader(context.frame)
        if len(rows) > _FEW_ROWS:
            if self._whole is None:
                self._whole = DistinctOperator(self._checked, self._checked.root)
            answers = self._whole.answers(context)
            codes = answers.inputs.codes[rows].tolist()
            values = answers.extend()
            found = []
            for row, code in zip(rows.tolist(), codes, strict=True):
                value = values[code]
                if value is UNEVALUATED:
                    value = answer(row)
                    if value.__class__ is not ExhaustedError:
                        values[code] = value
                found.append(value)
        else:
            found = [answer(row) for row in rows.tolist()]
        return _with(column, rows.tolist(), rows.tolist(), found), not _some_exhausted(found)

    def _row_by_row(self, frame: Frame, rows: Rows | None) -> Column:
        answer = self._fallback.reader(frame)
        requested = range(frame.size) if rows is None else rows.tolist()
        answers = [answer(row) for row in requested]
        dtype = _dtype(self._checked)
        letter = np.dtype(dtype).kind
        if letter != "O" and all(_letter(value) == letter for value in answers):
            return Column(np.array(answers, dtype))
        return _with(Column(np.zeros(len(answers), dtype)), requested, range(len(answers)), answers)

    def _up_to_date(self, kept: CachedColumn, frame: Frame, stamp: int, requested: Rows | None) -> Column | None:
        """Return the kept column with the rows that changed evaluated anew; None where they are too many."""
        if kept.stamp == stamp:
            return kept.column
        changed = frame.changed(self._row_paths, kept.stamp)
        if changed is None or len(changed) > _FEW_CHANGES:
            return None
        if requested is not None and len(changed) and not self.numeric:
            # What costs more than a few numbers is answered where it is asked for.
            holds = np.ones(frame.size, dtype=np.bool_) if kept.holds is None else kept.holds.copy()
            holds[changed] = False
            wanted = np.intersect1d(changed, requested, assume_unique=True)
            holds[wanted] = True
            kept_holds: Mask | None = None if holds.all() else holds
            changed = wanted
        else:
            kept_holds = kept.holds
        if len(changed):
            answer = self._fallback.reader(frame)
            rows = changed.tolist()
            found = [answer(row) for row in rows]
            column = _with(kept.column, rows, rows, found)
            if _some_exhausted(found):
                return column
            kept.column = column
        kept.holds = kept_holds
        kept.stamp = stamp
        return kept.column

    def _over(self, frame: Frame, beneath: Frame, differing: Rows, rows: Rows | None) -> Column:
        """Return the column of an overlay: that beneath, with the rows that differ evaluated anew."""
        column = self.column(beneath, rows)
        places = differing
        if rows is not None:
            differing = np.intersect1d(differing, rows, assume_unique=True)
            places = np.searchsorted(rows, differing)
        answer = self._fallback.reader(frame)
        at = differing.tolist()
        return _with(column, at, places.tolist(), [answer(row) for row in at])

    # How an expression is split

    def _guarded(self, node: Expr) -> Operator:
        part = self._split_up(node)
        if isinstance(part, (CallOperator, MembershipOperator, ColumnOperator, ChoiceOperator)):
            return GuardOperator(self._checked, node, part)
        return part

    def _split_up(self, node: Expr) -> Operator:
        """Return the part of a node."""
        checked = self._checked
        if checked.scopes[node.id] is not Scope.ROW:
            if isinstance(node, Literal) and not node.unsigned and node.value.__class__ in (bool, int, float):
                return ConstantOperator(node.value)
            return DecisionOperator(checked, node)
        reference = checked.references.get(node.id)
        if isinstance(reference, DefinitionReference):
            plan = plan_of(checked.definition(reference.name))
            self.numeric = self.numeric and plan.numeric
            return VariableOperator(plan, node.position)
        path = column_path(checked, node)
        if path is not None:
            kind = _KINDS.get(checked.types[node.id], "b")
            return self._distinct(node) if kind == "b" else ColumnOperator(checked, node, path, kind)
        if isinstance(node, Call):
            return self._call(node, reference)
        if _unrolls(node, checked):
            self.numeric = False
            return UnrollOperator(checked, node)
        return self._distinct(node)

    def _distinct(self, node: Expr) -> DistinctOperator:
        self.numeric = False
        return DistinctOperator(self._checked, node)

    def _call(self, node: Call, reference: object) -> Operator:
        match node.function:
            case "_&&_" | "_||_":
                terms = _terms(node, node.function)
                self._parts += len(terms)
                if self._parts > _MOST_PARTS:
                    return self._distinct(node)
                return LogicOperator([self._guarded(term) for term in terms], conjunction=node.function == "_&&_")
            case "_?_:_":
                condition, first, second = node.args
                return ChoiceOperator(self._guarded(condition), self._split_up(first), self._split_up(second))
            case "!_":
                return CallOperator(invert, [self._guarded(node.args[0])])
            case "@in":
                numbers = _constant_ints(node.args[1])
                if numbers is not None and self._checked.types[node.args[0].id] in (INT, DYN):
                    return MembershipOperator(self._split_up(node.args[0]), numbers)
            case _:
                pass
        if isinstance(reference, CallReference):
            function = OPERATORS.get(reference.function)
            arguments = node.args if node.target is None or reference.qualified else (node.target, *node.args)
            if function is None:
                function = _by_column(reference)
            if function is not None and all(self._checked.types[each.id] in _NUMERIC for each in arguments):
                return CallOperator(function, [self._split_up(each) for each in arguments])
        return self._distinct(node)


def _is_of_kind(value: object, kind: str) -> bool:
    """Whether a value is of a kind, and a number that columns hold."""
    return value.__class__ is _CLASSES.get(kind) and (not isinstance(value, int) or abs(value) < 2**63)


def _some_exhausted(answers: Sequence[object]) -> bool:
    return any(answer.__class__ is ExhaustedError for answer in answers)


def _by_column(reference: CallReference) -> Callable[..., Operand] | None:
    """Return what computes a function on columns, where it says how."""
    if len(reference.overloads) != 1:
        return None
    (overload,) = reference.overloads
    kinds = [_KINDS.get(each, "?") for each in (*overload.parameters, overload.result)]
    if overload.by_column is None or "?" in kinds:
        return None
    return vectorized(overload.by_column, "".join(kinds))


_NUMERIC: Final = frozenset({INT, DOUBLE, DYN, BOOL})


def plan_of(checked: Checked) -> ColumnPlan:
    """Return the plan of an expression, made when it is first asked for."""
    plan = checked.plans.get(ColumnPlan)
    if not isinstance(plan, ColumnPlan):
        plan = checked.plans[ColumnPlan] = ColumnPlan(checked)
    return plan


def _terms(node: Call, function: str) -> list[Expr]:
    """Return the operands of a chain of one operator, left to right."""
    found: list[Expr] = []
    rest: list[Expr] = [node]
    while rest:
        each = rest.pop()
        if isinstance(each, Call) and each.function == function:
            rest += [each.args[1], each.args[0]]
        else:
            found.append(each)
    return found


def _constant_ints(node: Expr) -> tuple[int, ...] | None:
    """Return the numbers of a list of literal ints, None for any other node."""
    if not isinstance(node, ListLiteral) or node.optional or len(node.elements) > _LONGEST_LIST:
        return None
    numbers = [each.value for each in node.elements if isinstance(each, Literal) and not each.unsigned]
    if len(numbers) != len(node.elements) or not all(number.__class__ is int for number in numbers):
        return None
    return tuple(numbers)  # type: ignore[arg-type]


def _dtype(checked: Checked) -> Any:
    return {BOOL: np.bool_, INT: np.int64, DOUBLE: np.float64}.get(checked.type, np.object_)


def _filled(size: int, value: object) -> Vector:
    try:
        return Vector.full(size, value)
    except NotColumnar:
        values = np.empty(size, dtype=np.object_)
        values.fill(value)
        return Vector(values)


def _with(column: Column, rows: Sequence[int], places: Sequence[int], answers: Sequence[object]) -> Column:
    """Return a copy of a column with other answers, values or errors, in some rows, which stand at these places."""
    values: NDArray[Any] = column.values
    errors = dict(column.errors)
    if not rows:
        return column
    letter = values.dtype.kind
    fits = letter == "O" or all(isinstance(answer, EvaluationError) or _letter(answer) == letter for answer in answers)
    # A value of another kind than the rest (a dyn expression's, a number beyond 64 bits) makes it a column of objects.
    values = values.copy() if fits else values.astype(np.object_)
    for row, place, answer in zip(rows, places, answers, strict=True):
        if isinstance(answer, EvaluationError):
            errors[row] = answer
            continue
        errors.pop(row, None)
        values[place] = answer
    return Column(values, errors)


def _letter(value: object) -> str:
    """Return numpy's letter of the kind of array that holds such values."""
    if value.__class__ is bool:
        return "b"
    return "O" if not is_number(value) else "i" if value.__class__ is int else "f"


def _bytes_of(column: Column) -> int:
    return 1_000 + column.values.nbytes + 100 * len(column.errors)
