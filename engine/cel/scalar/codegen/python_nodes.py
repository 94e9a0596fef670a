"""Nodes of Python's syntax tree as `ast` has them, for generated code: all of them are in the first line.

`compile` wants a line and a column of every statement and expression. It reads them as attributes, so one value of the
class does for all nodes; `ast.fix_missing_locations` would visit and write each, which took half of the time of
generating a function.
"""

# ruff: noqa: D101, N801 - each class is the one of the same name
from __future__ import annotations

import ast
from ast import (
    Add,
    And,
    BitAnd,
    Eq,
    FloorDiv,
    Gt,
    GtE,
    In,
    Is,
    IsNot,
    Load,
    Lt,
    LtE,
    Mod,
    Module,
    Mult,
    Not,
    NotEq,
    Or,
    Store,
    Sub,
    arguments,
    cmpop,
    expr,
    operator,
    stmt,
)

__all__ = [
    "Add", "And", "Assign", "Attribute", "AugAssign", "BinOp", "BitAnd", "BoolOp", "Break", "Call", "Compare",
    "Constant", "Dict", "Eq", "ExceptHandler", "Expr", "FloorDiv", "For", "FunctionDef", "Gt", "GtE", "If", "IfExp",
    "In", "Is", "IsNot", "List", "Load", "Lt", "LtE", "Mod", "Module", "Mult", "Name", "NamedExpr", "Not", "NotEq",
    "Or", "Return", "Store", "Sub", "Subscript", "Try", "Tuple", "UnaryOp", "arg", "arguments", "cmpop", "expr",
    "operator", "stmt",
]


class _Placed:
    lineno: int = 1
    col_offset: int = 0
    end_lineno: int | None = 1
    end_col_offset: int | None = 0


class arg(_Placed, ast.arg):
    pass


class Assign(_Placed, ast.Assign):
    pass


class Attribute(_Placed, ast.Attribute):
    pass


class AugAssign(_Placed, ast.AugAssign):
    pass


class BinOp(_Placed, ast.BinOp):
    pass


class BoolOp(_Placed, ast.BoolOp):
    pass


class Break(_Placed, ast.Break):
    pass


class Call(_Placed, ast.Call):
    pass


class Compare(_Placed, ast.Compare):
    pass


class Constant(_Placed, ast.Constant):
    pass


class Dict(_Placed, ast.Dict):
    pass


class ExceptHandler(_Placed, ast.ExceptHandler):
    pass


class Expr(_Placed, ast.Expr):
    pass


class For(_Placed, ast.For):
    pass


class FunctionDef(_Placed, ast.FunctionDef):
    pass


class If(_Placed, ast.If):
    pass


class IfExp(_Placed, ast.IfExp):
    pass


class List(_Placed, ast.List):
    pass


class Name(_Placed, ast.Name):
    pass


class NamedExpr(_Placed, ast.NamedExpr):
    pass


class Return(_Placed, ast.Return):
    pass


class Subscript(_Placed, ast.Subscript):
    pass


class Try(_Placed, ast.Try):
    pass


class Tuple(_Placed, ast.Tuple):
    pass


class UnaryOp(_Placed, ast.UnaryOp):
    pass
