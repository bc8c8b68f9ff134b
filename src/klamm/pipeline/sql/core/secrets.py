"""Values that shall not be shown: where they come from, and how they are kept out of words for others.

An option may say `${NAME}`: the value of a variable of the environment, looked up when it is used, so that neither the
file nor the pipeline's folder has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from klamm.model.errors import ConfigError

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_HIDDEN: Final = re.compile(r"password|secret|token|jaas|user\.info|private|credential|passphrase", re.IGNORECASE)
_IN_URL: Final = re.compile(r"((?:password|pwd|secret|token)=)[^;&\s]+|(//[^/@:\s]+:)[^/@\s]+(?=@)", re.IGNORECASE)
SHOWN_INSTEAD: Final = "***"


def is_secret(name: str) -> bool:
    """Whether the value of an option of this name is nobody's business."""
    return _HIDDEN.search(name) is not None


def expand(text: str, environment: Mapping[str, str], what: str) -> str:
    """A value with its `${NAME}`s replaced; ConfigError when the environment has none of that name."""

    def value(match: re.Match[str]) -> str:
        found = environment.get(match[1])
        if found is None:
            raise ConfigError(f"{what} takes {match[0]} from the environment, which has no {match[1]}: export it")
        return found

    return _VARIABLE.sub(value, text)


def mask_secrets(text: str, secrets: Iterable[str] = ()) -> str:
    """A text in which secrets, and passwords inside of addresses, cannot be read."""
    for each in sorted((secret for secret in secrets if secret), key=len, reverse=True):
        text = text.replace(each, SHOWN_INSTEAD)
    return _IN_URL.sub(lambda match: f"{match[1] or match[2]}{SHOWN_INSTEAD}", text)
