"""Build the response that refuses a request: its response type with an error code in every field for one.

A response mirrors its request: topics with partitions, groups, resources. `build_refusal` walks both declarations in
parallel, copies the names (topic, partition, group ...) and sets the error. Pure.
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
"""Field names that mean the same in requests and responses."""


class NoErrorFieldError(ValueError):
    """The response has no error field."""


def build_refusal(api: Api, request: Any, code: ErrorCode, message: str = "refused by the test") -> Any:
    """The response that refuses `request`; NoErrorFieldError when its response has no field for an error."""
    response = api.response()
    if not _mirror(request, response, code, message):
        raise NoErrorFieldError(f"the response of {api.name} has no error field here")
    return response


def _mirror(request: Any, response: Any, code: ErrorCode, message: str) -> bool:
    """Fill `response` from the request; return whether an error was set."""
    has_error_field = False
    own = {field.name for field in fields(response)}
    for name in own:
        if name == "error_code":
            setattr(response, name, int(code))
            has_error_field = True
        elif name == "error_message":
            setattr(response, name, message)
        else:
            value = _counterpart(request, name)
            if value is not None and not isinstance(value, list) and not is_dataclass(value):
                setattr(response, name, value)
    lists = [value for value in _values(request) if isinstance(value, list) and value]
    for field in fields(response):
        kind = field.metadata["wire"].type
        if not isinstance(kind, Array) or not is_dataclass(kind.element) or not lists:
            continue
        # The first list of the request is that of its items (topics, groups, resources); later ones hold options.
        elements, has_error = _mirror_list(lists[0], kind.element, code, message)
        if has_error:
            # Lists without an error field, such as the brokers of Metadata, stay empty.
            setattr(response, field.name, elements)
            has_error_field = True
            break
    return has_error_field


def _mirror_list(request: list[Any], element: Any, code: ErrorCode, message: str) -> tuple[list[Any], bool]:
    elements, has_error = [], False
    for item in request:
        response = element()
        if is_dataclass(item):
            has_error = _mirror(item, response, code, message) or has_error
        else:
            has_error = _fill_scalar(item, response, code, message) or has_error
        elements.append(response)
    return elements, has_error


def _fill_scalar(item: Any, response: Any, code: ErrorCode, message: str) -> bool:
    """Fill a response from an element that is only a name or a number: the first field of its type gets it."""
    has_error_field = False
    taken = False
    for field in fields(response):
        if field.name == "error_code":
            setattr(response, field.name, int(code))
            has_error_field = True
        elif field.name == "error_message":
            setattr(response, field.name, message)
        # By the type of the default: `partition_indexes: [0, 1]` fills the first int32, a topic name the first string.
        elif not taken and type(getattr(response, field.name)) is type(item):
            setattr(response, field.name, item)
            taken = True
    return has_error_field


def _values(message: Any) -> list[Any]:
    return [getattr(message, field.name) for field in fields(message)]


def _counterpart(request: Any, name: str) -> Any:
    if name in ("throttle_time_ms", "error_code"):
        return None
    names = next((group for group in _SAME if name in group), {name})
    for field in fields(request):
        if field.name in names:
            return getattr(request, field.name)
    return None
