"""Sessions in memory: a random id in a cookie, a token for forms, a message for the next page.

A restart of the console ends them, and a login gets an id that was never sent before.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from klamm.console.core.roles import Visitor

COOKIE: Final = "klamm_session"
IDLE_S: Final = 8 * 3600
SESSIONS_MAX: Final = 10_000
"""The oldest is dropped: sessions cost memory before anyone has logged in."""


@dataclass(slots=True)
class FlashMessage:
    """A message that the next page shows once."""

    text: str
    kind: str = "good"
    """good or bad."""
    undo: str = ""
    """The path of a form that takes the change back."""


@dataclass(slots=True)
class ConsoleSession:
    """One browser."""

    id: str
    token: str
    visitor: Visitor | None
    """None before the login."""
    used_s: float
    messages: list[FlashMessage] = field(default_factory=list)
    by_proxy: bool = False
    """Whether the visitor is that of a proxy's header, and not of a login."""

    def take_messages(self) -> list[FlashMessage]:
        """Return the messages and forget them."""
        messages, self.messages = self.messages, []
        return messages

    def accepts(self, token: str) -> bool:
        """Whether a form was made for this session."""
        return hmac.compare_digest(token.encode(), self.token.encode())


class SessionStore:
    """All sessions, the one used last at the end."""

    def __init__(
        self, clock_s: Callable[[], float], *, idle_s: float = IDLE_S, sessions_max: int = SESSIONS_MAX
    ) -> None:
        self._clock_s = clock_s
        self._idle_s = idle_s
        self._sessions_max = sessions_max
        self._sessions: OrderedDict[str, ConsoleSession] = OrderedDict()

    def find(self, session_id: str) -> ConsoleSession | None:
        """Return a session that is not too old."""
        session = self._sessions.get(session_id)
        if session is None:
            return None
        now_s = self._clock_s()
        if now_s - session.used_s > self._idle_s:
            del self._sessions[session_id]
            return None
        session.used_s = now_s
        self._sessions.move_to_end(session_id)
        return session

    def holds(self, session: ConsoleSession) -> bool:
        """Whether a session has neither ended nor is too old, without using it: a stream must not keep it alive."""
        kept = self._sessions.get(session.id)
        return kept is session and self._clock_s() - session.used_s <= self._idle_s

    def create(self, visitor: Visitor | None, *, by_proxy: bool = False) -> ConsoleSession:
        """Return a new session with an id and a token of its own."""
        session = ConsoleSession(
            secrets.token_urlsafe(32), secrets.token_urlsafe(32), visitor, self._clock_s(), by_proxy=by_proxy
        )
        self._sessions[session.id] = session
        while len(self._sessions) > self._sessions_max:
            self._sessions.popitem(last=False)
        return session

    def end(self, session: ConsoleSession) -> None:
        """Forget a session."""
        self._sessions.pop(session.id, None)

    def __len__(self) -> int:
        return len(self._sessions)


def parse_cookie(header: str, cookie: str = COOKIE) -> str:
    """Return the session id of a Cookie header, or the value of another cookie; empty without one."""
    for part in header.split(";"):
        name, _, value = part.strip().partition("=")
        if name == cookie:
            return value
    return ""


def format_cookie(session: ConsoleSession, *, secure: bool) -> str:
    """Return the Set-Cookie header: no script reads it, and other sites' requests do not carry it."""
    flags = "; Secure" if secure else ""
    return f"{COOKIE}={session.id}; Path=/; HttpOnly; SameSite=Strict{flags}"
