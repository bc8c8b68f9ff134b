"""Names of subjects, and the contexts they are in.

A subject is written `name` in the default context and `:.context:name` in another one. `:.context:` with an empty name
stands for the context itself, in configs and modes. Each context counts its own schema ids.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from klamm.registry.store.refusals import RegistryRefusal

DEFAULT_CONTEXT: Final = "."
GLOBAL_CONTEXT: Final = ".__GLOBAL"
"""Not a context of schemas: the scope above the global one, for configs and modes."""
ALL_CONTEXTS: Final = ":*:"
_RESERVED: Final = ("__GLOBAL", "__EMPTY")
_CHARS_MAX: Final = 2000


class Subject(NamedTuple):
    """A subject's name and context; as text it is the name under which records and answers have it."""

    context: str
    name: str

    def __str__(self) -> str:
        return self.name if self.context == DEFAULT_CONTEXT else f":{self.context}:{self.name}"

    @property
    def is_context(self) -> bool:
        """Whether it stands for a whole context."""
        return not self.name and self.context != DEFAULT_CONTEXT


def parse_subject(text: str, context: str = DEFAULT_CONTEXT) -> Subject:
    """Parse a subject; one that names no context is in `context`."""
    if not text.startswith(":."):
        return Subject(context, text)
    named, _, name = text[1:].partition(":")
    return Subject(named, name)


def check_subject(subject: Subject) -> None:
    """Refuse names that no subject may have."""
    text = str(subject)
    bad = subject.name in _RESERVED or subject.context == GLOBAL_CONTEXT or subject.is_context
    # Control characters would break keys, logs and URLs; everything else is allowed, also the empty name.
    if bad or len(text) > _CHARS_MAX or any(ord(char) < 32 or ord(char) == 127 for char in text):
        raise RegistryRefusal(42208, f"The specified subject '{text[:200]}' is not a valid subject name.")


def parse_context(text: str) -> str:
    """Parse the name of a context as it is in a path, with or without the dot in front."""
    if ":" in text or any(ord(char) < 32 for char in text):
        raise RegistryRefusal(400, f"The context name '{text}' must not contain a colon or a control character")
    return text if text.startswith(".") else f".{text}"


def matches_prefix(subject: Subject, prefix: str) -> bool:
    """Whether a subject begins with a prefix, which may name one context or all (`:*:`)."""
    if prefix.startswith(ALL_CONTEXTS):
        return subject.name.startswith(prefix[len(ALL_CONTEXTS) :])
    wanted = parse_subject(prefix)
    return subject.context == wanted.context and subject.name.startswith(wanted.name)
