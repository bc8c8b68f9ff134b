"""A filter a person writes for records: `value.price > 10 and key in ("a", "b")`. Pure, and unable to do harm.

The text is parsed as a Python expression and checked against a short list of forms; what remains is turned into
closures over one record. There are no attributes of objects, no calls but the ones named here, no loops and no powers,
so an expression can neither reach anything nor run long: it costs at most its own size per record.

    key value topic partition offset timestamp headers size     what a record has; key and value are text
    value.order.id  value["order"]  headers["trace"]            fields: a value that is JSON is looked into
    == != < <= > >=  in  not in  and or not  + - * / %          as in Python; arithmetic on numbers alone
    len lower upper number text exists startswith endswith contains like(text, "a*")

What a record does not have is `None`: it equals only that, is neither smaller nor larger, and contains nothing.
"""

from __future__ import annotations

import ast
import fnmatch
import json
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

TEXT_MAX: Final = 2000
NODES_MAX: Final = 200
DEPTH_MAX: Final = 20
_NUMBER_MAX: Final = 2**1000


class FilterError(ValueError):
    """The expression is not one of the allowed forms; says where and what to write."""


class RecordLike(Protocol):
    """What a filter looks at: the fields of `klamm.client.Record`."""

    @property
    def topic(self) -> str:
        """Where it is from."""

    @property
    def partition(self) -> int:
        """The partition."""

    @property
    def offset(self) -> int:
        """The offset."""

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970."""

    @property
    def key(self) -> Any:
        """Bytes or None."""

    @property
    def value(self) -> Any:
        """Bytes or None."""

    @property
    def headers(self) -> Any:
        """Pairs of name and bytes."""


class _View:
    """A record while its filter runs; text and JSON are made when they are first looked at."""

    __slots__ = ("_made", "record")

    def __init__(self, record: RecordLike) -> None:
        self.record = record
        self._made: dict[str, Any] = {}

    def text(self, name: str) -> Any:
        """Key or value as text."""
        if name not in self._made:
            self._made[name] = _text(getattr(self.record, name))
        return self._made[name]

    def parsed(self, name: str) -> Any:
        """Key or value as JSON, None when it is none."""
        """Key or value as JSON, None when it is none."""
        slot = f"{name} parsed"
        if slot not in self._made:
            try:
                self._made[slot] = json.loads(self.text(name) or "null")
            except (ValueError, RecursionError):
                self._made[slot] = None
        return self._made[slot]


Part = Callable[[_View], Any]


@dataclass(frozen=True, slots=True)
class Filter:
    """A checked expression; calling it with a record tells whether the record passes."""

    text: str
    _part: Part

    def __call__(self, record: RecordLike) -> bool:
        """Whether the record passes."""
        return bool(self._part(_View(record)))


def compile_filter(text: str) -> Filter:
    """Check an expression; FilterError says what is wrong with it."""
    if len(text) > TEXT_MAX:
        raise FilterError(f"a filter has at most {TEXT_MAX} characters; this one has {len(text)}")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise FilterError(f"{text!r} is no expression: {getattr(error, 'msg', error)}") from None
    count = sum(1 for _ in ast.walk(tree))
    if count > NODES_MAX:
        raise FilterError(f"the filter has {count} parts; {NODES_MAX} are the most there may be")
    return Filter(text, _build(tree.body, 0))


def _build(node: ast.expr, depth: int) -> Part:
    if depth > DEPTH_MAX:
        raise FilterError(f"the filter is nested more than {DEPTH_MAX} deep")
    builder = _BUILDERS.get(type(node))
    if builder is None:
        raise FilterError(f"{ast.unparse(node)!r} is not allowed in a filter")
    return builder(node, depth + 1)


def _constant(node: ast.Constant, _: int) -> Part:
    value = node.value
    if not isinstance(value, str | int | float | bool | None):
        raise FilterError(f"{ast.unparse(node)!r} is not allowed in a filter: write text or a number")
    return lambda _view: value


def _name(node: ast.Name, _: int) -> Part:
    name = node.id
    if name in ("key", "value"):
        return lambda view: view.text(name)
    if name in ("topic", "partition", "offset", "timestamp"):
        return lambda view: getattr(view.record, name)
    if name == "headers":
        return lambda view: _headers(view.record)
    if name == "size":
        return lambda view: len(view.record.value or b"")
    if name in ("true", "false", "null"):
        value = {"true": True, "false": False, "null": None}[name]
        return lambda _view: value
    raise FilterError(f"there is no {name!r} in a record; write key, value, headers, topic, partition, offset, ...")


def _field(owner: ast.expr, key: str | int, depth: int) -> Part:
    if isinstance(owner, ast.Name) and owner.id in ("key", "value"):
        name = owner.id
        return lambda view: _get(view.parsed(name), key)
    inside = _build(owner, depth)
    return lambda view: _get(inside(view), key)


def _attribute(node: ast.Attribute, depth: int) -> Part:
    return _field(node.value, node.attr, depth)


def _subscript(node: ast.Subscript, depth: int) -> Part:
    index = node.slice
    if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub) and isinstance(index.operand, ast.Constant):
        index = ast.Constant(-index.operand.value) if isinstance(index.operand.value, int) else index
    if not isinstance(index, ast.Constant) or not isinstance(index.value, str | int):
        raise FilterError(f"{ast.unparse(node)!r}: write a name in quotes or a number between the brackets")
    return _field(node.value, index.value, depth)


def _get(owner: Any, key: str | int) -> Any:
    if isinstance(owner, Mapping) and isinstance(key, str):
        return owner.get(key)
    if isinstance(owner, list) and isinstance(key, int) and -len(owner) <= key < len(owner):
        return owner[key]
    return None


def _bool(node: ast.BoolOp, depth: int) -> Part:
    parts = [_build(value, depth) for value in node.values]
    if isinstance(node.op, ast.And):
        return lambda view: all(part(view) for part in parts)
    return lambda view: any(part(view) for part in parts)


def _unary(node: ast.UnaryOp, depth: int) -> Part:
    inside = _build(node.operand, depth)
    if isinstance(node.op, ast.Not):
        return lambda view: not inside(view)
    if isinstance(node.op, ast.USub):
        return lambda view: -value if _is_number(value := inside(view)) else None
    raise FilterError(f"{ast.unparse(node)!r} is not allowed in a filter")


_ARITHMETIC: Final[dict[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}


def _binary(node: ast.BinOp, depth: int) -> Part:
    act = _ARITHMETIC.get(type(node.op))
    if act is None:
        raise FilterError(f"{ast.unparse(node)!r} is not allowed in a filter: + - * / % are")
    left, right = _build(node.left, depth), _build(node.right, depth)

    def calculate(view: _View) -> Any:
        one, other = left(view), right(view)
        if not _is_number(one) or not _is_number(other):
            return None
        try:
            result = act(one, other)
        except (ArithmeticError, ValueError):
            return None
        return result if abs(result) < _NUMBER_MAX else None

    return calculate


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_COMPARISONS: Final[dict[type, Callable[[Any, Any], bool]]] = {
    ast.Eq: lambda a, b: bool(a == b),
    ast.NotEq: lambda a, b: bool(a != b),
    ast.Lt: lambda a, b: _ordered(operator.lt, a, b),
    ast.LtE: lambda a, b: _ordered(operator.le, a, b),
    ast.Gt: lambda a, b: _ordered(operator.gt, a, b),
    ast.GtE: lambda a, b: _ordered(operator.ge, a, b),
    ast.In: lambda a, b: _contains(b, a),
    ast.NotIn: lambda a, b: not _contains(b, a),
    ast.Is: lambda a, b: a is None and b is None,
    ast.IsNot: lambda a, b: (a is None) != (b is None),
}


def _ordered(compare: Callable[[Any, Any], bool], one: Any, other: Any) -> bool:
    if (_is_number(one) and _is_number(other)) or (isinstance(one, str) and isinstance(other, str)):
        return compare(one, other)
    return False


def _contains(owner: Any, item: Any) -> bool:
    if isinstance(owner, str):
        return isinstance(item, str) and item in owner
    if isinstance(owner, Mapping):
        return isinstance(item, str) and item in owner
    return isinstance(owner, list | tuple) and item in owner


def _compare(node: ast.Compare, depth: int) -> Part:
    acts = [_COMPARISONS[type(op)] for op in node.ops]
    parts = [_build(each, depth) for each in (node.left, *node.comparators)]

    def holds(view: _View) -> bool:
        values = [part(view) for part in parts]
        return all(act(one, other) for act, one, other in zip(acts, values, values[1:], strict=False))

    return holds


def _list(node: ast.List | ast.Tuple | ast.Set, depth: int) -> Part:
    parts = [_build(each, depth) for each in node.elts]
    return lambda view: [part(view) for part in parts]


def _number(value: Any) -> Any:
    if _is_number(value):
        return value
    try:
        return float(value) if isinstance(value, str) and len(value) <= 64 else None
    except ValueError:
        return None


def _glob(value: Any, pattern: Any) -> bool:
    return isinstance(value, str) and isinstance(pattern, str) and fnmatch.fnmatchcase(value, pattern)


def _both(test: Callable[[str, str], bool]) -> Callable[[Any, Any], bool]:
    return lambda one, other: isinstance(one, str) and isinstance(other, str) and test(one, other)


_FUNCTIONS: Final[dict[str, tuple[int, Callable[..., Any]]]] = {
    "len": (1, lambda value: len(value) if isinstance(value, str | list | Mapping) else None),
    "lower": (1, lambda value: value.lower() if isinstance(value, str) else None),
    "upper": (1, lambda value: value.upper() if isinstance(value, str) else None),
    "number": (1, _number),
    "text": (1, lambda value: None if value is None else value if isinstance(value, str) else json.dumps(value)),
    "exists": (1, lambda value: value is not None),
    "startswith": (2, _both(str.startswith)),
    "endswith": (2, _both(str.endswith)),
    "contains": (2, _contains),
    "like": (2, _glob),
}


def _call(node: ast.Call, depth: int) -> Part:
    known = _FUNCTIONS.get(node.func.id) if isinstance(node.func, ast.Name) else None
    if known is None or node.keywords:
        names = ", ".join(sorted(_FUNCTIONS))
        raise FilterError(f"{ast.unparse(node)!r} is not allowed in a filter; it knows {names}")
    count, act = known
    if len(node.args) != count:
        raise FilterError(f"{ast.unparse(node)!r}: it takes {count} value{'s' if count > 1 else ''}")
    parts = [_build(each, depth) for each in node.args]
    return lambda view: act(*[part(view) for part in parts])


_BUILDERS: Final[dict[type, Callable[[Any, int], Part]]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.BoolOp: _bool,
    ast.UnaryOp: _unary,
    ast.BinOp: _binary,
    ast.Compare: _compare,
    ast.List: _list,
    ast.Tuple: _list,
    ast.Set: _list,
    ast.Call: _call,
}


def _text(data: Any) -> Any:
    return bytes(data).decode(errors="replace") if isinstance(data, bytes | bytearray | memoryview) else data


def _headers(record: RecordLike) -> dict[str, Any]:
    return {name: _text(value) for name, value in record.headers or ()}
