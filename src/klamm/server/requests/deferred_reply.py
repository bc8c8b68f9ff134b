"""A reply whose time has not come: keeps its place in the order of the connection until somebody decides."""

from collections.abc import Callable
from typing import Any

from klamm.model.errors import ErrorCode, KlammError
from klamm.server.requests.context import RequestContext
from klamm.server.requests.replies import response_parts

_NO_FRAME = memoryview(b"")


class DeferredReply:
    """Answers one request when called, with a response or with a KlammError, which `refused` puts into words."""

    __slots__ = ("_context", "_refused", "_slot")

    def __init__(self, context: RequestContext, refused: Callable[[ErrorCode], Any]) -> None:
        context.frame = _NO_FRAME  # the bytes of the request are borrowed, and this may take minutes
        self._context = context
        self._slot = context.channel.defer()
        self._refused = refused

    def __call__(self, response: Any) -> None:
        """Answer."""
        if isinstance(response, KlammError):
            response = self._refused(response.code)
        self._slot.send(response_parts(self._context, response))

    def send(self, frame: bytes) -> None:
        """Answer with a whole reply that is encoded already."""
        self._slot.send((frame,))


class Gathering:
    """Calls `done` with all answers, in the order they were asked for, once the last one is here."""

    def __init__(self, count: int, done: Callable[[list[Any]], None]) -> None:
        self._answers: list[Any] = [None] * count
        self._missing = count
        self._done = done
        if not count:
            done([])

    def place(self, index: int) -> Callable[[Any], None]:
        """Where answer number `index` is to be given."""

        def answer(response: Any) -> None:
            self._answers[index] = response
            self._missing -= 1
            if not self._missing:
                self._done(self._answers)

        return answer
