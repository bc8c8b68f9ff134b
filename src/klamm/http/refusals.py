"""Errors that are answered to the client of a service."""

from __future__ import annotations


class HttpRefusal(Exception):
    """A refused request; the first three digits of the error code are the HTTP status."""

    def __init__(self, error_code: int, message: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.error_code = error_code
        self.message = message
        self.headers = headers

    @property
    def status(self) -> int:
        """The HTTP status."""
        return int(str(self.error_code)[:3])
