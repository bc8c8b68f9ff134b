"""Valid requests full of the smallest elements, of every API that has an array."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from klamm.protocol import encode, encode_request_header
from klamm.protocol.apis import BY_NAME, Api
from klamm.protocol.header import RequestHeader
from klamm.protocol.schema import Array, Scalar, Sized, declaration
from klamm.server.requests.routes import SERVED


def _arrays(shape: Any, version: int) -> Iterator[tuple[Any, ...]]:
    """Every array that a request has directly, and those one level deeper."""
    for field in shape.fields:
        if field.tag is None and field.lives_in(version) and isinstance(field.type, Array):
            yield (field,)
            if not isinstance(field.type.element, Scalar | Sized | Array):
                for inner in declaration(field.type.element).fields:
                    if inner.tag is None and inner.lives_in(version) and isinstance(inner.type, Array):
                        yield field, inner


def _element(kind: Any) -> Any:
    if isinstance(kind, Scalar):
        return bytes(16) if kind.name == "uuid" else 0
    if isinstance(kind, Sized):
        return "" if kind.name == "string" else b""
    return kind()


_SAMPLE = 200


def _varint(number: int) -> bytes:
    groups = []
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])


class Flood(NamedTuple):
    """An array of an API in its newest version, that can be filled."""

    api: Api
    version: int
    path: tuple[Any, ...]

    @property
    def name(self) -> str:
        """What is flooded, in words."""
        return f"{self.api.name} v{self.version} {'.'.join(field.name for field in self.path)}"

    def request(self, count: int, make: Callable[[Any], Any] = _element) -> bytes:
        """A request whose array has so many elements, all of the smallest form unless `make` makes others."""
        if count <= 2 * _SAMPLE or make is not _element:
            return self._encode(count, make)
        # All elements are equal: a million of them are copied, not encoded. The sample's counts have one length in
        # either form, and differ in their last or first byte.
        sample, longer = self._encode(_SAMPLE, make), self._encode(_SAMPLE + 1, make)
        element_bytes = len(longer) - len(sample)
        at = next(index for index, byte in enumerate(sample) if byte != longer[index])
        flexible = self.api.flexible_since is not None and self.version >= self.api.flexible_since
        start, end, written = (
            (at, at + 2, _varint(count + 1)) if flexible else (at - 3, at + 1, count.to_bytes(4, "big"))
        )
        rest = end + _SAMPLE * element_bytes
        return sample[:start] + written + sample[end : end + element_bytes] * count + sample[rest:]

    def _encode(self, count: int, make: Callable[[Any], Any]) -> bytes:
        request = self.api.request(acks=1) if self.api.name == "Produce" else self.api.request()  # 0 has no answer
        items = [make(self.path[-1].type.element)] * count
        if len(self.path) == 2:
            holder = self.path[0].type.element()
            setattr(holder, self.path[1].name, items)
            items = [holder]
        setattr(request, self.path[0].name, items)
        return request_frame(self.api.name, self.version, request)

    def request_of_size(self, size: int) -> bytes:
        """A request of about so many bytes."""
        grows_by = len(self.request(1001)) - len(self.request(1))
        return self.request(size * 1000 // grows_by)


def request_frame(api_name: str, version: int, request: Any) -> bytes:
    """A request with its header, as a frame holds it."""
    header = encode_request_header(RequestHeader(BY_NAME[api_name].key, version, 1, "flood"))
    return header + encode(request, version)


def floods() -> Iterator[Flood]:
    """Every array of every API that clients are served."""
    for name in SERVED:
        api = BY_NAME[name]
        version = api.versions[1]
        for path in _arrays(declaration(api.request), version):
            yield Flood(api, version, path)
