"""Passwords and keys as a type of their own, so that no log line, error or dump of an object shows them."""

import hmac
from typing import Final

HIDDEN: Final = "[hidden]"
"""What stands for a secret in texts, as in Kafka's."""


class Secret:
    """A text that prints as "[hidden]"; `reveal` is the only way to read it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text itself."""
        return self._text

    def equals(self, other: str) -> bool:
        """Compare in constant time: a comparison that ends at the first difference lets a peer guess byte by byte."""
        return hmac.compare_digest(self._text.encode(), other.encode())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self.equals(other._text)

    def __hash__(self) -> int:
        return hash(self._text)

    def __bool__(self) -> bool:
        return bool(self._text)

    def __repr__(self) -> str:
        return HIDDEN

    # Pickle and copy would write the text into files and messages between processes.
    def __reduce__(self) -> str:
        raise TypeError("a secret is not pickled")
