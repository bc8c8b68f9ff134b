"""ssl.principal.mapping.rules: the user name of a client certificate (KIP-371)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from klamm.model.errors import ConfigError

_RULE: Final = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")
_REFERENCE: Final = re.compile(r"\\(.)|\$([0-9]+)|([^\\$]+)|(.)", re.DOTALL)

SUBJECT_CHARS_MAX: Final = 1024
"""A pattern with several groups, as in Kafka's documentation, takes time by the third power of the subject's length:
50 ms at a thousand characters, seconds at four thousand. X.520 allows 64 characters for most attributes."""


class NoMatchingRule(Exception):
    """No rule has a name for the subject: the connection is refused."""


@dataclass(frozen=True, slots=True)
class MappingRule:
    """A pattern of whole names and what replaces them; without a pattern the name stays as it is."""

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    case: str = ""
    """"L" for lower case, "U" for upper case."""

    def apply(self, name: str) -> str | None:
        """Return the user's name, or None if the rule is not for this name."""
        if self.pattern is None:
            return name
        # Kafka tests the whole name, and then replaces every occurrence within it.
        if not self.pattern.fullmatch(name):
            return None
        # A function, not a template: Java writes groups as $1, and Python would read \1 in the text as one.
        user = self.pattern.sub(self._expand, name)
        return user.lower() if self.case == "L" else user.upper() if self.case == "U" else user

    def _expand(self, match: re.Match[str]) -> str:
        parts = []
        for escaped, digits, text, other in _REFERENCE.findall(self.replacement):
            if digits:
                parts.append(_expand_group(match, digits))
            else:
                parts.append(escaped or text or other)
        return "".join(parts)


def parse_mapping_rules(text: str) -> tuple[MappingRule, ...]:
    """Parse the rules; ConfigError for text that is none."""
    rules = []
    position = 0
    while position < len(text.rstrip()):
        match = _RULE.match(text, position)
        if match is None:
            raise ConfigError(
                f"ssl.principal.mapping.rules has {text[position:]!r}; write RULE:pattern/replacement/[L|U] or DEFAULT"
            )
        position = match.end()
        default, pattern, replacement, case = match.groups()
        try:
            rules.append(MappingRule() if default else MappingRule(re.compile(pattern), replacement, case))
        except re.error as error:
            raise ConfigError(f"ssl.principal.mapping.rules has pattern {pattern!r}: {error}") from None
    return tuple(rules) or (MappingRule(),)


def map_subject(rules: Sequence[MappingRule], subject: str) -> str:
    """Return the user's name by the first rule that matches the whole subject."""
    for rule in rules:
        # Before the pattern is tried; DEFAULT takes a subject of any length.
        if rule.pattern is not None and len(subject) > SUBJECT_CHARS_MAX:
            raise NoMatchingRule(f"the subject has {len(subject)} characters, more than {SUBJECT_CHARS_MAX}")
        user = rule.apply(subject)
        if user is not None:
            return user
    raise NoMatchingRule(f"no rule of ssl.principal.mapping.rules matches {subject}")


def _expand_group(match: re.Match[str], digits: str) -> str:
    """Return the group of `$12`, which as in Java is group 1 followed by "2" where there are fewer than 12."""
    count = len(digits)
    while count > 1 and int(digits[:count]) > (match.re.groups or 0):
        count -= 1
    if int(digits[:count]) > match.re.groups:
        return "$" + digits
    return (match[int(digits[:count])] or "") + digits[count:]
