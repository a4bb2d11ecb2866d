"""Mutants of a source: copies in which one expression is changed, as a slip of the hand would change it.

What is changed into what stands in `_changes`. Left alone are type hints, docstrings, decorators,
what errors say, and what is inside f-strings (whose places Python 3.11 does not tell).

A mutant is named by its function and its expression before and after, so that the name survives
changes elsewhere in the file.
"""

import ast
import collections
import copy
from collections.abc import Iterator
from typing import NamedTuple

SWAPS: dict[type, list[type]] = {
    ast.Lt: [ast.LtE, ast.Gt],
    ast.LtE: [ast.Lt],
    ast.Gt: [ast.GtE, ast.Lt],
    ast.GtE: [ast.Gt],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
    ast.And: [ast.Or],
    ast.Or: [ast.And],
    ast.Add: [ast.Sub],
    ast.Sub: [ast.Add],
    ast.Mult: [ast.Div],
    ast.Div: [ast.Mult],
    ast.FloorDiv: [ast.Mult],
    ast.Mod: [ast.Mult],
    ast.Pow: [ast.Mult],
    ast.MatMult: [ast.Mult],
    ast.BitAnd: [ast.BitOr],
    ast.BitOr: [ast.BitAnd],
}
NAMES = {
    "max": "min",
    "min": "max",
    "maximum": "minimum",
    "minimum": "maximum",
    "any": "all",
    "all": "any",
    "zeros": "ones",
    "ones": "zeros",
    "reduce_mean": "reduce_sum",
    "reduce_sum": "reduce_mean",
    "set": "clear",
    "sorted": "list",
    "reversed": "list",
}


class Mutant(NamedTuple):
    """One change: `new` takes the place of the bytes from `start` to `end`."""

    name: str
    line: int
    function: str
    start: int
    end: int
    new: str

    def apply(self, source: str) -> str:
        """Return the source with the change made."""
        data = source.encode()
        return (data[: self.start] + self.new.encode() + data[self.end :]).decode()


def mutants_of(source: str) -> list[Mutant]:
    """Return every mutant of a source, in the source's order."""
    offsets = [0]
    for line in source.encode().splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    names: collections.Counter[str] = collections.Counter()
    found = []
    expressions = _expressions(ast.parse(source), "")
    for function, node, is_condition in sorted(
        expressions, key=lambda it: (it[1].lineno, it[1].col_offset)
    ):
        for new in _changes(node, is_condition):
            before, after = ast.unparse(node), ast.unparse(new)
            name = f"{function or '(module)'}: {before} → {after}"
            names[name] += 1
            if names[name] > 1:
                name += f" ({names[name]})"
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            start = offsets[node.lineno - 1] + node.col_offset
            end = offsets[node.end_lineno - 1] + node.end_col_offset
            # A keyword is no expression of its own, and needs no brackets.
            text = after if isinstance(node, ast.stmt) else f"({after})"
            found.append(Mutant(name, node.lineno, function, start, end, text))
    return found


def functions_marked(source: str, mark: str) -> str:
    """Return the source with a call `mark("name")` at the start of each function."""
    tree = ast.parse(source)

    def visit(node: ast.AST, scope: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = _scope_of(child, scope)
            if isinstance(child, ast.FunctionDef):
                child.body.insert(_is_documented(child), ast.parse(f"{mark}({name!r})").body[0])
            visit(child, name)

    visit(tree, "")
    return ast.unparse(ast.fix_missing_locations(tree))


def _scope_of(node: ast.AST, scope: str) -> str:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return f"{scope}.{node.name}".lstrip(".")
    return scope


def _is_documented(node: ast.AST) -> bool:
    body = getattr(node, "body", None)
    first = body[0] if isinstance(body, list) and body else None
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)


def _expressions(node: ast.AST, scope: str) -> Iterator[tuple[str, ast.expr | ast.stmt, bool]]:
    """Yield all that may be changed below a node: its function, itself, and if it is a condition."""
    left_alone = {"annotation", "returns", "decorator_list", "bases", "type_params"}
    skip_docstring = _is_documented(node)
    for field, value in ast.iter_fields(node):
        if field in left_alone:
            continue
        children = value if isinstance(value, list) else [value]
        for i, child in enumerate(children):
            is_docstring = field == "body" and i == 0 and skip_docstring
            if not isinstance(child, ast.AST) or is_docstring or _is_left_alone(child, scope):
                continue
            # A function's default values belong to what is around it.
            inner = _scope_of(child, scope)
            if isinstance(child, ast.expr | ast.stmt):
                yield inner, child, field == "test"
            yield from _expressions(child, inner)


def _is_left_alone(node: ast.AST, scope: str) -> bool:
    is_type_alias = not scope and isinstance(node, ast.Assign) and "|" in ast.unparse(node.value)
    return is_type_alias or isinstance(
        node, ast.JoinedStr | ast.Raise | ast.Assert | ast.Import | ast.ImportFrom
    )


def _changes(node: ast.expr | ast.stmt, is_condition: bool) -> Iterator[ast.AST]:
    """Yield what a node may be changed into."""
    if is_condition and not isinstance(node, ast.Compare | ast.BoolOp | ast.UnaryOp):
        yield ast.UnaryOp(ast.Not(), node)
    match node:
        case ast.Compare(ops=[op]):
            yield from (_with(node, ops=[new()]) for new in SWAPS[type(op)])
        case ast.BoolOp(op=op) | ast.BinOp(op=op) | ast.AugAssign(op=op):
            yield from (_with(node, op=new()) for new in SWAPS.get(type(op), []))
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            yield ast.Constant(value * 2 or 1.0)
        case ast.Constant(value=str(value)):
            yield ast.Constant(value + "X")
        case ast.Name(id=name) if name in NAMES:
            yield ast.Name(NAMES[name])
        case ast.Attribute(attr=name) if name in NAMES:
            yield _with(node, attr=NAMES[name])
        case ast.Call(func=ast.Attribute(), args=[argument], keywords=[]) if not isinstance(
            argument, ast.Starred
        ):
            yield argument
        case ast.Call(keywords=keywords):
            for i in range(len(keywords)):
                yield _with(node, keywords=keywords[:i] + keywords[i + 1 :])
        case ast.Expr(value=ast.Call()):
            yield ast.Expr(ast.Constant(None))
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))


def _with(node: ast.AST, **fields: object) -> ast.AST:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new
