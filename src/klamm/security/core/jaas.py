"""JAAS login modules as Kafka's properties contain them: `Module required key="value" ...;`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from klamm.model.errors import ConfigError
from klamm.security.core.secret import Secret

_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_TOKEN: Final = re.compile(
    r"""(?P<blank>\s+|//[^\n]*|/\*.*?\*/|\#[^\n]*)
    |"(?P<double>(?:\\.|[^"\\\n])*)"
    |'(?P<single>(?:\\.|[^'\\\n])*)'
    |(?P<word>[^\s"'=;/\#]+)
    |(?P<mark>[=;])""",
    re.VERBOSE | re.DOTALL,
)
# Octal escapes as in Java's StreamTokenizer, by which Kafka parses these lines: at most \377.
_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "b": "\b", "a": "\a", "v": "\v"}


@dataclass(frozen=True, slots=True)
class LoginModule:
    """One entry: the Java class, and its options."""

    name: str
    options: Mapping[str, Secret]

    @property
    def class_name(self) -> str:
        """The name of the class without its package."""
        return self.name.rpartition(".")[2]

    def option(self, name: str) -> Secret | None:
        """Return an option, or None if the line does not have it."""
        return self.options.get(name)


def parse_jaas(text: str) -> LoginModule:
    """Parse a line with exactly one login module; ConfigError says what is missing, and never shows a value."""
    tokens = _tokens(text)
    if not tokens:
        raise ConfigError('sasl.jaas.config names no login module; write Module required key="value";')
    flag = tokens[1] if len(tokens) > 1 else ("mark", "")
    # The flag is required by the grammar and has no effect here: there is one module per mechanism.
    if tokens[0][0] != "text" or flag[0] != "text" or flag[1].lower() not in _FLAGS:
        raise ConfigError(f"sasl.jaas.config: the login module must be followed by one of {', '.join(_FLAGS)}")
    rest = tokens[2:]
    options: dict[str, Secret] = {}
    while rest and rest[0] != ("mark", ";"):
        key = rest[0][1]
        if len(rest) < 3 or rest[0][0] != "text" or rest[1] != ("mark", "=") or rest[2][0] != "text":
            raise ConfigError(f'sasl.jaas.config: key {key!r} has no value; write {key}="value"')
        # All values are secrets: which option holds a password depends on the module.
        options[key] = Secret(rest[2][1])
        rest = rest[3:]
    if not rest:
        raise ConfigError("sasl.jaas.config: the login module must end with a semicolon")
    if len(rest) > 1:
        raise ConfigError("sasl.jaas.config has more than one login module; write one per mechanism")
    return LoginModule(tokens[0][1], options)


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ConfigError("sasl.jaas.config has a quotation mark that is not closed")
        position = match.end()
        match match.lastgroup:
            case "mark":
                tokens.append(("mark", match["mark"]))
            case "double" | "single":
                tokens.append(("text", _ESCAPE.sub(_unescape, match[match.lastgroup])))
            case "word":
                tokens.append(("text", match["word"]))
    return tokens


def _unescape(match: re.Match[str]) -> str:
    escape = match[1]
    return chr(int(escape, 8)) if escape[0] in "01234567" else _ESCAPED.get(escape, escape)
