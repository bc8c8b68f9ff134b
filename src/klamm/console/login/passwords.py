"""Passwords as argon2id hashes, checked in threads and not too often."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

from klamm.console.settings import LocalUser

ATTEMPTS_MAX: Final = 5
"""Failed logins of a user or an address in a window, after which it is refused."""
WINDOW_S: Final = 60.0
_KEYS_MAX: Final = 10_000
_CHECKS_MAX: Final = 2
"""Checks at a time: each takes 64 MiB and some tens of milliseconds."""


class TooManyAttempts(Exception):
    """The user or the address failed too often in the last minute."""


class PasswordLogin:
    """Checks names and passwords."""

    def __init__(self, users: Mapping[str, LocalUser], clock_s: Callable[[], float]) -> None:
        self._users = users
        self._clock_s = clock_s
        self._hasher = PasswordHasher()
        # Checked for unknown names too, so that the time of an answer does not tell which names exist.
        self._decoy = self._hasher.hash("no password")
        self._failures: dict[str, list[float]] = {}
        self._checks = asyncio.Semaphore(_CHECKS_MAX)

    async def check(self, name: str, password: str, peer: str) -> LocalUser | None:
        """Return the user if the password is right; TooManyAttempts before anything is computed."""
        keys = (f"user {name}", f"peer {peer}")
        if any(len(self._recent(key)) >= ATTEMPTS_MAX for key in keys):
            raise TooManyAttempts
        user = self._users.get(name)
        hashed = self._decoy if user is None else user.password_hash
        async with self._checks:
            right = await asyncio.to_thread(self._verify, hashed, password)
        if right and user is not None:
            self._failures.pop(keys[0], None)
            return user
        for key in keys:
            self._recent(key).append(self._clock_s())
        return None

    def _recent(self, key: str) -> list[float]:
        if len(self._failures) > _KEYS_MAX:
            self._failures.clear()
        failures = self._failures.setdefault(key, [])
        begin_s = self._clock_s() - WINDOW_S
        failures[:] = [at_s for at_s in failures if at_s > begin_s]
        return failures

    def _verify(self, hashed: str, password: str) -> bool:
        try:
            return self._hasher.verify(hashed, password)
        except (Argon2Error, InvalidHashError):
            return False


def hash_password(password: str) -> str:
    """Return the hash of a password for the console's file."""
    return PasswordHasher().hash(password)
