"""An answer that refuses: any request's own response, with an error code wherever the response has room for one.

A response mirrors its request: topics with partitions, groups, resources. `refusal` walks both declarations side by
side, takes over what names a thing (topic, partition, group ...) and fills in the error. Pure.
"""

from dataclasses import fields, is_dataclass
from typing import Any

from klamm.model.errors import ErrorCode
from klamm.protocol.apis import Api
from klamm.protocol.schema import Array

_SAME = (
    {"name", "topic", "topic_name"},
    {"index", "partition", "partition_index", "partition_id"},
    {"group_id", "group"},
    {"key"},
)
"""Names for the same thing in requests and responses."""


class NoRoomForError(ValueError):
    """The response has no place for an error: there is nothing a broker could say."""


def refusal(api: Api, request: Any, code: ErrorCode, message: str = "refused by the test") -> Any:
    """The response that refuses `request`; NoRoomForError when its response cannot carry an error."""
    response = api.response()
    if not _mirror(request, response, code, message):
        raise NoRoomForError(f"{api.name} has no place for an error in this answer")
    return response


def _mirror(asked: Any, answer: Any, code: ErrorCode, message: str) -> bool:
    """Fill `answer` by what was asked; whether an error found its place."""
    placed = False
    own = {field.name for field in fields(answer)}
    for name in own:
        if name == "error_code":
            setattr(answer, name, int(code))
            placed = True
        elif name == "error_message":
            setattr(answer, name, message)
        else:
            value = _counterpart(asked, name)
            if value is not None and not isinstance(value, list) and not is_dataclass(value):
                setattr(answer, name, value)
    lists = [value for value in _values(asked) if isinstance(value, list) and value]
    for field in fields(answer):
        kind = field.metadata["wire"].type
        if not isinstance(kind, Array) or not is_dataclass(kind.element) or not lists:
            continue
        made, found = _mirror_list(lists[0], kind.element, code, message)
        if found:
            setattr(answer, field.name, made)
            placed = True
            break
    return placed


def _mirror_list(asked: list[Any], element: Any, code: ErrorCode, message: str) -> tuple[list[Any], bool]:
    made, found = [], False
    for item in asked:
        answer = element()
        if is_dataclass(item):
            found = _mirror(item, answer, code, message) or found
        else:
            found = _plain(item, answer, code, message) or found
        made.append(answer)
    return made, found


def _plain(item: Any, answer: Any, code: ErrorCode, message: str) -> bool:
    """An entry that is only a name or a number: the first field of its kind takes it."""
    placed = False
    taken = False
    for field in fields(answer):
        if field.name == "error_code":
            setattr(answer, field.name, int(code))
            placed = True
        elif field.name == "error_message":
            setattr(answer, field.name, message)
        elif not taken and type(getattr(answer, field.name)) is type(item):
            setattr(answer, field.name, item)
            taken = True
    return placed


def _values(message: Any) -> list[Any]:
    return [getattr(message, field.name) for field in fields(message)]


def _counterpart(asked: Any, name: str) -> Any:
    if name in ("throttle_time_ms", "error_code"):
        return None
    names = next((group for group in _SAME if name in group), {name})
    for field in fields(asked):
        if field.name in names:
            return getattr(asked, field.name)
    return None
