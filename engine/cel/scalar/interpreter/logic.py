"""`&&`, `||` and `?:`, which evaluate only the operands that they need."""

from __future__ import annotations

from ...syntax import ast
from ...values.values import EvaluationError, no_overload
from ..evaluation import Evaluation, Step
from .builder import StepBuilder
from .reads import only_reads


def logic(builder: StepBuilder, node: ast.Call, *, decisive: bool) -> Step:
    """Return the step of `&&` (`decisive` is False) or `||` (True): a decisive operand absorbs the other's error."""
    left_node, right_node = node.args
    left, right = builder.build(left_node), builder.build(right_node)
    position = node.position

    def operand(step: Step, evaluation: Evaluation) -> object:
        try:
            value = step(evaluation)
        except EvaluationError as error:
            if error.final:
                raise
            return error
        return value if type(value) is bool else no_overload().at(position)

    def combine(evaluation: Evaluation) -> object:
        first = operand(left, evaluation)
        if first is decisive:
            return decisive
        second = operand(right, evaluation)
        if second is decisive:
            return decisive
        if type(first) is not bool:
            raise first  # type: ignore[misc]
        if type(second) is not bool:
            raise second  # type: ignore[misc]
        return second

    return combine


def conditional(builder: StepBuilder, node: ast.Call) -> Step:
    """Return the step of `?:`."""
    condition, then, otherwise = (builder.build(each) for each in node.args)
    # cel-go does not charge the variable of a branch that only reads.
    then_less, otherwise_less = (1 if only_reads(builder, each) else 0 for each in node.args[1:])
    position = node.position

    def choose(evaluation: Evaluation) -> object:
        chosen = condition(evaluation)
        if chosen is True:
            evaluation.cost -= then_less
            return then(evaluation)
        if chosen is False:
            evaluation.cost -= otherwise_less
            return otherwise(evaluation)
        raise no_overload().at(position)

    return choose
