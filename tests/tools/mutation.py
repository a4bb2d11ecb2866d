"""Mutants of a source: copies with one small change, as a typing mistake would make it.

`_changes` says what is changed into what. Type hints, docstrings, decorators, error messages and
f-strings are left alone (Python 3.11 does not tell where the parts of an f-string are).

A mutant is named by its function and by its expression before and after the change.
"""

import ast
import collections
import copy
import hashlib
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
    start: int
    end: int
    new: str

    def apply(self, source: str) -> str:
        """Return the source with the change made."""
        data = source.encode()
        return (data[: self.start] + self.new.encode() + data[self.end :]).decode()


class Part(NamedTuple):
    """A function, or a statement outside of all functions, and its mutants in the source's order.

    Parts with equal keys have equal mutants, whatever their docstrings, types and modules are.
    """

    name: str
    key: str
    mutants: list[Mutant]


def parts_of(source: str) -> list[Part]:
    """Return the parts of a source that have mutants."""
    offsets = [0]
    for line in source.encode().splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    parts = [
        Part(name, key_of(node), _mutants_of(name, node, offsets))
        for name, node in nodes_of(ast.parse(source))
    ]
    return [part for part in parts if part.mutants]


def key_of(node: ast.stmt) -> str:
    """Return a hash of what may change the outcome of a mutant of this function or statement."""
    bare = _Bare().visit(copy.deepcopy(node))
    return hash_of(ast.unparse(bare or ast.Pass()))


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]


class _Bare(ast.NodeTransformer):
    """Takes away docstrings, types and what errors say."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        node.body = node.body[_is_documented(node) :] or [ast.Pass()]
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(node.arg)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if node.value is None:
            return None
        return self.generic_visit(ast.Assign([node.target], node.value, lineno=0))

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        if isinstance(node.exc, ast.Call):
            return ast.Raise(node.exc.func)
        return node


def nodes_of(node: ast.Module | ast.ClassDef, scope: str = "") -> Iterator[tuple[str, ast.stmt]]:
    """Yield each function and each other statement, with its name; a class is taken apart."""
    for child in node.body[_is_documented(node) :]:
        if isinstance(child, ast.ClassDef):
            yield from nodes_of(child, f"{scope}{child.name}.")
        elif isinstance(child, ast.FunctionDef):
            yield scope + child.name, child
        elif isinstance(child, ast.Assign | ast.AnnAssign):
            target = child.targets[0] if isinstance(child, ast.Assign) else child.target
            yield scope + ast.unparse(target), child
        else:
            yield f"{scope}(statement)", child


def _mutants_of(part: str, node: ast.stmt, offsets: list[int]) -> list[Mutant]:
    """Return the mutants of a part; equal changes are numbered."""
    names: collections.Counter[str] = collections.Counter()
    found = []
    whole = ast.Module([node], [])
    for expression, is_condition in sorted(
        _expressions(whole, is_top="." not in part), key=lambda it: (it[0].lineno, it[0].col_offset)
    ):
        for new in _changes(expression, is_condition):
            before, after = ast.unparse(expression), ast.unparse(new)
            name = f"{part}: {before} → {after}"
            names[name] += 1
            if names[name] > 1:
                name += f" ({names[name]})"
            assert expression.end_lineno is not None
            assert expression.end_col_offset is not None
            start = offsets[expression.lineno - 1] + expression.col_offset
            end = offsets[expression.end_lineno - 1] + expression.end_col_offset
            # A keyword is not an expression of its own, and needs no brackets.
            text = after if isinstance(expression, ast.stmt) else f"({after})"
            found.append(Mutant(name, expression.lineno, start, end, text))
    return found


def functions_marked(source: str, mark: str, path: str) -> str:
    """Return the source with a call `mark("path:name")` in each function that is a part."""
    tree = ast.parse(source)
    for name, node in list(nodes_of(tree)):
        if isinstance(node, ast.FunctionDef):
            node.body.insert(
                _is_documented(node), ast.parse(f"{mark}({f'{path}:{name}'!r})").body[0]
            )
    return ast.unparse(ast.fix_missing_locations(tree))


def _is_documented(node: ast.AST) -> bool:
    body = getattr(node, "body", None)
    first = body[0] if isinstance(body, list) and body else None
    return (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    )


def _expressions(node: ast.AST, is_top: bool) -> Iterator[tuple[ast.expr | ast.stmt, bool]]:
    """Yield all that may be changed below a node, and whether it is a condition."""
    left_alone = {"annotation", "returns", "decorator_list", "bases", "type_params"}
    skip_docstring = _is_documented(node)
    for field, value in ast.iter_fields(node):
        if field in left_alone:
            continue
        children = value if isinstance(value, list) else [value]
        for i, child in enumerate(children):
            is_docstring = field == "body" and i == 0 and skip_docstring
            if not isinstance(child, ast.AST) or is_docstring or _is_left_alone(child, is_top):
                continue
            if isinstance(child, ast.expr | ast.stmt):
                yield child, field == "test"
            yield from _expressions(child, is_top and not isinstance(child, ast.FunctionDef))


def _is_left_alone(node: ast.AST, is_top: bool) -> bool:
    is_type_alias = is_top and isinstance(node, ast.Assign) and "|" in ast.unparse(node.value)
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
