"""Secrets in options: environment variables, and masking in messages.

An option may contain `${NAME}`: the value of an environment variable, looked up on use, so that neither the file nor
the pipeline's folder contains it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from klamm.model.errors import ConfigError

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_HIDDEN: Final = re.compile(
    r"password|secret|token|jaas|user\.info|private|credential|passphrase|keystore\.key", re.IGNORECASE
)
_IN_URL: Final = re.compile(r"((?:password|pwd|secret|token)=)[^;&\s]+|(//[^/@:\s]+:)[^/@\s]+(?=@)", re.IGNORECASE)
MASK: Final = "***"


def is_secret(name: str) -> bool:
    """Whether the value of an option of this name is a secret."""
    return _HIDDEN.search(name) is not None


def expand(text: str, environment: Mapping[str, str], what: str) -> str:
    """Return a value with its `${NAME}`s replaced; ConfigError when the environment has no such variable."""

    def value(match: re.Match[str]) -> str:
        variable = environment.get(match[1])
        if variable is None:
            raise ConfigError(f"{what} takes {match[0]} from the environment, which has no {match[1]}: export it")
        return variable

    # A single pass: a value that contains ${...} is not expanded again.
    return _VARIABLE.sub(value, text)


def mask_secrets(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a text with secrets, and passwords in URLs, masked."""
    # The longest first: a secret may contain another one.
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return _IN_URL.sub(_mask_url, text)


def _mask_url(match: re.Match[str]) -> str:
    return f"{match[1] or match[2]}{MASK}"
