# SPDX-License-Identifier: Apache-2.0
"""Small changes to a Python file that a test should notice: one operator, number or statement at a time."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.BitXor: ast.BitOr,
}
_NOT_RUN = {"annotation", "returns", "exc", "msg", "type_params", "decorator_list"}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: the bytes from `start` to `end` become `text`."""

    line: int
    start: int
    end: int
    before: str
    text: str
    names: tuple[str, ...]
    """What the changed statement assigns where it stands outside a function: the constant or field with this value."""

    def apply(self, source: bytes) -> bytes:
        """The changed file."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutants(source: bytes) -> list[Mutant]:
    """All changes of a file, in its order."""
    found = list(_Finder(source).walk(ast.parse(source), ()))
    return sorted(set(found), key=lambda one: (one.start, one.end, one.text))


class _Finder:
    def __init__(self, source: bytes) -> None:
        self._source = source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def walk(self, node: ast.AST, names: tuple[str, ...] | None) -> Iterator[Mutant]:
        """The changes of a node and of all below it, but for what no running program looks at; None in functions."""
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            names = None
        if isinstance(node, ast.Assign | ast.AnnAssign) and names is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = tuple(one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name))
        for changed, text in _changes(node):
            yield self._mutant(changed, text, names or ())
        for field, value in ast.iter_fields(node):
            if field in _NOT_RUN:
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.JoinedStr) or (isinstance(child, ast.keyword) and child.arg == "strict"):
                    continue
                if isinstance(child, ast.AST):
                    yield from self.walk(child, names)

    def _mutant(self, node: ast.expr | ast.stmt, text: str, names: tuple[str, ...]) -> Mutant:
        assert node.end_lineno is not None and node.end_col_offset is not None, "it was parsed"  # noqa: PT018
        start = self._lines[node.lineno - 1] + node.col_offset
        end = self._lines[node.end_lineno - 1] + node.end_col_offset
        return Mutant(node.lineno, start, end, self._source[start:end].decode(), text, names)


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:  # noqa: PLR0912 - one case for each kind
    """What one node could be instead; expressions in brackets, for they stand in others."""
    match node:
        case ast.Constant(value=bool() as value):
            yield node, str(not value)
        case ast.Constant(value=int() as value):
            yield node, str(value + 1)
        case ast.Constant(value=float() as value):
            yield node, str(value * 2 or 1.0)
        case ast.Compare(left=left, ops=ops, comparators=others):
            for i, op in enumerate(ops):
                changed = [*ops[:i], _COMPARE[type(op)](), *ops[i + 1 :]]
                yield node, f"({ast.unparse(ast.Compare(left, changed, others))})"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY and not isinstance(left, ast.Constant):
            yield node, f"({ast.unparse(ast.BinOp(left, _BINARY[type(op)](), right))})"
        case ast.BoolOp(op=op, values=values):
            yield node, f"({ast.unparse(ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values))})"
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.Call(func=ast.Name(id=name) as called) if name in _CALLS:
            yield called, _CALLS[name]
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) if isinstance(
            test, ast.Name | ast.Attribute | ast.Call
        ):
            yield test, f"(not {ast.unparse(test)})"
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Delete():
            yield node, "pass"
        case ast.Continue():
            yield node, "break"
        case ast.Break():
            yield node, "continue"
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield value, "None"
        case _:
            return
