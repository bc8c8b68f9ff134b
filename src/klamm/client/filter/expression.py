"""The filter of `--where`: `value.price > 10 and key in ("a", "b")`. Pure, and safe to evaluate.

The text is parsed as a Python expression and checked against a short list of forms; what remains is turned into
closures over one record. There are no attributes of objects, no calls but the ones named here, no loops and no powers,
so an expression has no access to the process and no unbounded cost: per record at most its own size.

    key value topic partition offset timestamp headers size     what a record has; key and value are text
    value.order.id  value["order"]  headers["trace"]            fields of a key or value that is JSON
    == != < <= > >=  in  not in  and or not  + - * / %          as in Python; arithmetic on numbers alone
    len lower upper number text exists startswith endswith contains like(text, "a*")

What a record does not have is `None`, which equals only itself. What cannot be compared or computed is unknown, as in
SQL: whether `None` is smaller than 5, whether text is, what "a" * 2 is or `value.price / 0`. Unknown stays unknown
under `not`, and a record passes only when its expression is true. A comparison of text with a number that does not
depend on the record is refused. A time in quotes may be compared with `timestamp`.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from klamm.client.filter.functions import FUNCTIONS, contains, is_number
from klamm.client.filter.missing_fields import Misses
from klamm.client.filter.record_view import UNKNOWN, RecordLike, Unknown, View, as_text
from klamm.model.units import parse_iso_ms

TEXT_MAX: Final = 2000
NODES_MAX: Final = 200
DEPTH_MAX: Final = 20
_NUMBER_MAX: Final = 2**1000
"""Integers have no limit in Python: products of huge numbers would take long and fill memory."""


class FilterError(ValueError):
    """The expression is not one of the allowed forms; the message shows where and what to write."""


CompiledPart = Callable[[View], Any]


@dataclass(slots=True)
class Filter:
    """A checked expression; called with a record it returns whether the record passes.

    Counts the records whose result was unknown for another reason than `None`, with the `reason` of the first, and the
    fields that records lacked.
    """

    text: str
    _part: CompiledPart
    unjudged: int = 0
    reason: str = ""
    misses: Misses = field(default_factory=Misses)

    def __call__(self, record: RecordLike) -> bool:
        """Whether the record passes."""
        view = View(record)
        result = self._part(view)
        self.misses.add(view.missing)
        if result is UNKNOWN and view.why is not None:
            self.reason = self.reason or f"{view.why} (the first at {record.topic}/{record.partition}@{record.offset})"
            self.unjudged += 1
        return bool(result)

    def forget_unjudged(self) -> None:
        """Begin to count again."""
        self.unjudged, self.reason, self.misses = 0, "", Misses()


def compile_filter(text: str) -> Filter:
    """Check an expression and compile it; FilterError otherwise."""
    if len(text) > TEXT_MAX:
        raise FilterError(f"a filter has at most {TEXT_MAX} characters; this one has {len(text)}")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    # The parser of Python itself fails with the last two on deep nesting.
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise FilterError(f"{text!r} is no expression: {getattr(error, 'msg', error)}") from None
    count = sum(1 for _ in ast.walk(tree))
    if count > NODES_MAX:
        raise FilterError(f"the filter has {count} parts; {NODES_MAX} are the most there may be")
    return Filter(text, _build(tree.body, 0))


def _build(node: ast.expr, depth: int) -> CompiledPart:
    if depth > DEPTH_MAX:
        raise FilterError(f"the filter is nested more than {DEPTH_MAX} deep")
    # An allow list: a form of a newer Python is refused until it is added.
    builder = _BUILDERS.get(type(node))
    if builder is None:
        raise FilterError(f"{ast.unparse(node)!r} is not allowed in a filter")
    return builder(node, depth + 1)


def _constant(node: ast.Constant, _: int) -> CompiledPart:
    value = node.value
    if not isinstance(value, str | int | float | bool | None):
        raise FilterError(f"{ast.unparse(node)!r} is not allowed in a filter: write text or a number")
    return lambda _view: value


def _name(node: ast.Name, _: int) -> CompiledPart:
    name = node.id
    if name in ("key", "value"):
        return lambda view: view.text(name)
    if name in ("topic", "partition", "offset", "timestamp"):
        return lambda view: getattr(view.record, name)
    if name == "headers":
        return lambda view: _headers(view.record)
    if name == "size":
        return lambda view: len(view.record.value or b"")
    # JSON's spelling beside Python's: people copy values from records.
    if name in ("true", "false", "null"):
        value = {"true": True, "false": False, "null": None}[name]
        return lambda _view: value
    raise FilterError(f"there is no {name!r} in a record; write key, value, headers, topic, partition, offset, ...")


def _field(node: ast.Attribute | ast.Subscript, key: str | int, depth: int) -> CompiledPart:
    owner, words = node.value, ast.unparse(node)
    # Parsed as JSON only when a field is used: `value == "a"` must not pay for it.
    if isinstance(owner, ast.Name) and owner.id in ("key", "value"):
        name = owner.id
        return lambda view: _get(view, view.parse(name), key, words)
    inside = _build(owner, depth)
    return lambda view: _get(view, inside(view), key, words)


def _attribute(node: ast.Attribute, depth: int) -> CompiledPart:
    return _field(node, node.attr, depth)


def _subscript(node: ast.Subscript, depth: int) -> CompiledPart:
    index = node.slice
    # -1 is not a constant in the syntax tree but a minus before 1.
    if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub) and isinstance(index.operand, ast.Constant):
        index = ast.Constant(-index.operand.value) if isinstance(index.operand.value, int) else index
    if not isinstance(index, ast.Constant) or not isinstance(index.value, str | int):
        raise FilterError(f"{ast.unparse(node)!r}: write a name in quotes or a number between the brackets")
    return _field(node, index.value, depth)


def _get(view: View, owner: Any, key: str | int, words: str) -> Any:
    if isinstance(owner, Mapping) and isinstance(key, str) and key in owner:
        return owner[key]
    if isinstance(owner, list) and isinstance(key, int) and -len(owner) <= key < len(owner):
        return owner[key]
    # A missing object is reported once, not again for each field below it.
    if owner is not None and not view.absence_meant:
        view.missing[words] = owner
    return None


def _with_absence_meant(part: CompiledPart) -> CompiledPart:
    """The same part, for an expression that tests whether a field is there."""

    def quiet(view: View) -> Any:
        before, view.absence_meant = view.absence_meant, True
        try:
            return part(view)
        finally:
            view.absence_meant = before

    return quiet


def _bool(node: ast.BoolOp, depth: int) -> CompiledPart:
    parts = [_build(value, depth) for value in node.values]
    decides = isinstance(node.op, ast.Or)  # one such value is enough, whatever is unknown beside it

    def join(view: View) -> Any:
        unknown = False
        for part in parts:
            value = part(view)
            if value is UNKNOWN:
                unknown = True
            # Short circuit as in SQL's three-valued logic: `unknown or true` is true, `unknown and false` is false.
            elif bool(value) is decides:
                return decides
        return UNKNOWN if unknown else not decides

    return join


def _unary(node: ast.UnaryOp, depth: int) -> CompiledPart:
    inside = _build(node.operand, depth)
    if isinstance(node.op, ast.Not):
        return lambda view: UNKNOWN if (value := inside(view)) is UNKNOWN else not value
    if isinstance(node.op, ast.USub):
        _must_be_number(node.operand, node)
        return lambda view: -value if is_number(value := inside(view)) else _not_a_number(view, value)
    raise FilterError(f"{ast.unparse(node)!r} is not allowed in a filter")


_ARITHMETIC: Final[dict[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}


def _binary(node: ast.BinOp, depth: int) -> CompiledPart:
    act = _ARITHMETIC.get(type(node.op))
    if act is None:
        raise FilterError(f"{ast.unparse(node)!r} is not allowed in a filter: + - * / % are")
    for side in (node.left, node.right):
        _must_be_number(side, node)
    left, right = _build(node.left, depth), _build(node.right, depth)
    words = ast.unparse(node)

    def calculate(view: View) -> Any:
        one, other = left(view), right(view)
        # Text times a number repeats it in Python, and plus joins text: neither is arithmetic here.
        for value in (one, other):
            if not is_number(value):
                return _not_a_number(view, value)
        try:
            result = act(one, other)
        except (ArithmeticError, ValueError):
            return view.unknown(f"{words} cannot be computed")
        # Checked after every step, so that no intermediate value grows without limit.
        return result if abs(result) < _NUMBER_MAX else view.unknown(f"{words} is too large")

    return calculate


def _not_a_number(view: View, value: Any) -> Unknown:
    if value is None or value is UNKNOWN:
        return UNKNOWN
    return view.unknown(f"{_kind(value)} is no number; number(...) makes one of it")


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    return "an object" if isinstance(value, Mapping) else "a list"


_KINDS: Final = {
    **dict.fromkeys(("key", "value", "topic", "lower", "upper", "text"), "text"),
    **dict.fromkeys(("partition", "offset", "timestamp", "size", "len", "number"), "a number"),
    **dict.fromkeys(("true", "false", "exists", "startswith", "endswith", "contains", "like"), "true or false"),
    "headers": "an object",
}


def _known_kind(node: ast.expr) -> str | None:
    """The type of an expression if it does not depend on the record; None otherwise."""
    if isinstance(node, ast.Constant):
        return None if node.value is None else _kind(node.value)
    if isinstance(node, ast.Name):
        return _KINDS.get(node.id)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _KINDS.get(node.func.id)
    if isinstance(node, ast.BinOp) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)):
        return "a number"
    if isinstance(node, ast.Compare | ast.BoolOp | ast.UnaryOp):
        return "true or false"
    return "a list" if isinstance(node, ast.List | ast.Tuple | ast.Set) else None


def _must_be_number(node: ast.expr, whole: ast.expr) -> None:
    kind = _known_kind(node)
    if kind not in (None, "a number"):
        raise FilterError(f"{ast.unparse(whole)!r}: {ast.unparse(node)} is {kind}, not a number; number(...) makes one")


def _must_compare(one: ast.expr, op: ast.cmpop, other: ast.expr) -> None:
    """FilterError for two constants that can never be compared: a mistake."""
    kinds = _known_kind(one), _known_kind(other)
    # `in` takes any type on its left side, and `is` only compares with null.
    if None in kinds or isinstance(op, ast.In | ast.NotIn | ast.Is | ast.IsNot):
        return
    ordered = not isinstance(op, ast.Eq | ast.NotEq)
    if kinds[0] != kinds[1] or (ordered and kinds[0] not in ("text", "a number")):
        raise FilterError(
            f"{ast.unparse(one)} is {kinds[0]} and {ast.unparse(other)} is {kinds[1]}: they cannot be compared;"
            " number(...) and text(...) make one of the other"
        )


def _with_time(node: ast.expr, beside: ast.expr) -> ast.expr:
    """A time in quotes beside `timestamp` as milliseconds; anything else as it is."""
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    if not is_text or not isinstance(beside, ast.Name) or beside.id != "timestamp":
        return node
    assert isinstance(node, ast.Constant)
    try:
        return ast.Constant(parse_iso_ms(str(node.value)))
    except ValueError:
        raise FilterError(f"{node.value!r} is no time; write one such as '2026-05-01T12:00:00Z'") from None


def _equals(view: View, one: Any, other: Any) -> Any:
    del view
    return bool(one == other)


def _test_contained(view: View, item: Any, owner: Any) -> Any:
    if owner is None:
        return UNKNOWN
    if not isinstance(owner, str | Mapping | list | tuple):
        return view.unknown(f"{_kind(owner)} contains nothing")
    return contains(owner, item)


def _negate(test: Callable[[View, Any, Any], Any]) -> Callable[[View, Any, Any], Any]:
    def negate(view: View, one: Any, other: Any) -> Any:
        outcome = test(view, one, other)
        return UNKNOWN if outcome is UNKNOWN else not outcome

    return negate


def _make_order_test(compare: Callable[[Any, Any], bool]) -> Callable[[View, Any, Any], Any]:
    def test(view: View, one: Any, other: Any) -> Any:
        if (is_number(one) and is_number(other)) or (isinstance(one, str) and isinstance(other, str)):
            return compare(one, other)
        if one is None or other is None:
            return UNKNOWN
        return view.unknown(f"{_kind(one)} and {_kind(other)} cannot be compared")

    return test


def _are_null(_view: View, one: Any, other: Any) -> bool:
    return one is None and other is None


def _is_one_null(_view: View, one: Any, other: Any) -> bool:
    return (one is None) != (other is None)


_COMPARISONS: Final[dict[type, Callable[[View, Any, Any], Any]]] = {
    ast.Eq: _equals,
    ast.NotEq: _negate(_equals),
    ast.Lt: _make_order_test(operator.lt),
    ast.LtE: _make_order_test(operator.le),
    ast.Gt: _make_order_test(operator.gt),
    ast.GtE: _make_order_test(operator.ge),
    ast.In: _test_contained,
    ast.NotIn: _negate(_test_contained),
    ast.Is: _are_null,
    ast.IsNot: _is_one_null,
}


def _compare(node: ast.Compare, depth: int) -> CompiledPart:
    sides = [node.left, *node.comparators]
    for i, op in enumerate(node.ops):
        one, other = sides[i], sides[i + 1]
        # Only single times are converted: the right side of `in` is a list.
        if not isinstance(op, ast.In | ast.NotIn):
            sides[i], sides[i + 1] = _with_time(one, other), _with_time(other, one)
        _must_compare(sides[i], op, sides[i + 1])
    acts = [_COMPARISONS[type(op)] for op in node.ops]
    parts = [_build(side, depth) for side in sides]
    # `value.note == null` tests for absence, so a missing field is not reported as a possible misspelling.
    if any(_is_null(side) for side in sides):
        parts = [_with_absence_meant(part) for part in parts]

    def holds(view: View) -> Any:
        # All sides are computed: a chain such as 1 < x < 5 uses the middle one twice.
        values = [part(view) for part in parts]
        unknown = False
        for act, one, other in zip(acts, values, values[1:], strict=False):
            outcome = UNKNOWN if one is UNKNOWN or other is UNKNOWN else act(view, one, other)
            if outcome is UNKNOWN:
                unknown = True
            elif not outcome:
                return False
        return UNKNOWN if unknown else True

    return holds


def _is_null(node: ast.expr) -> bool:
    return (isinstance(node, ast.Constant) and node.value is None) or (isinstance(node, ast.Name) and node.id == "null")


def _list(node: ast.List | ast.Tuple | ast.Set, depth: int) -> CompiledPart:
    parts = [_build(elt, depth) for elt in node.elts]

    def list_values(view: View) -> Any:
        values = [part(view) for part in parts]
        return UNKNOWN if any(value is UNKNOWN for value in values) else values

    return list_values


def _call(node: ast.Call, depth: int) -> CompiledPart:
    known = FUNCTIONS.get(node.func.id) if isinstance(node.func, ast.Name) else None
    if known is None or node.keywords:
        names = ", ".join(sorted(FUNCTIONS))
        raise FilterError(f"{ast.unparse(node)!r} is not allowed in a filter; there are {names}")
    count, act = known
    if len(node.args) != count:
        raise FilterError(f"{ast.unparse(node)!r}: it takes {count} value{'s' if count > 1 else ''}")
    parts = [_build(argument, depth) for argument in node.args]
    words, tests_presence = ast.unparse(node), act is FUNCTIONS["exists"][1]
    if tests_presence:
        parts = [_with_absence_meant(part) for part in parts]

    def call(view: View) -> Any:
        values = [part(view) for part in parts]
        if any(value is UNKNOWN for value in values):
            return False if tests_presence else UNKNOWN
        outcome = act(*values)
        # Of a missing value unknown is expected; of a present one it is worth a report.
        if outcome is UNKNOWN and None not in values:
            return view.unknown(f"{words} cannot be computed of {_kind(values[0])}")
        return outcome

    return call


_BUILDERS: Final[dict[type, Callable[[Any, int], CompiledPart]]] = {
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


def _headers(record: RecordLike) -> dict[str, Any]:
    return {name: as_text(value) for name, value in record.headers or ()}
