"""Definitions of settings: name, type, default and rule, and the conversion of text into values.

A `ConfigKey` is one setting, a `ConfigDef` a family of them (all topic settings, all broker settings). Text is parsed
as Kafka parses it, so that a properties file means the same here. A `ConfigError` says what to write instead; for an
unknown name it suggests the nearest known one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import partial
from typing import Final

from klamm.model.config_rules import ConfigRule
from klamm.model.errors import ConfigError

MAX_SHORT: Final = 2**15 - 1
MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1
MAX_DOUBLE: Final = 1.7976931348623157e308


class ConfigType(IntEnum):
    """How a setting's text is read; the numbers are those DescribeConfigs sends."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Importance(Enum):
    """The importance of a setting, by which Kafka's documentation orders its tables."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class UpdateMode(Enum):
    """Whether a running broker accepts a new value (KIP-226), and whether it is set per broker or for the cluster."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class Required:
    """The default of a setting that has none: leaving it out is an error."""

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = Required()

SettingValue = bool | int | float | str | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One setting: everything needed to parse, validate, describe and document it.

    `served` is whether the value has an effect in Klamm; a setting without effect is accepted and logged.
    """

    name: str
    type: ConfigType
    default: SettingValue | Required
    doc: str
    rule: ConfigRule | None = None
    importance: Importance = Importance.MEDIUM
    update_mode: UpdateMode = UpdateMode.READ_ONLY
    internal: bool = False
    served: bool = False

    @property
    def sensitive(self) -> bool:
        """Whether the value is a secret, which is never logged or sent."""
        return self.type is ConfigType.PASSWORD

    @property
    def default_text(self) -> str | None:
        """The default as Kafka prints it; None when there is none."""
        return None if isinstance(self.default, Required) else format_value(self.default)

    def parse(self, text: str | None) -> SettingValue:
        """The value of `text`; a ConfigError says what to write."""
        value = None if text is None else self._convert(_trim(text))
        if self.rule is not None:
            complaint = self.rule.complaint(value)
            if complaint:
                raise ConfigError(f"{self._pair(text)}: {complaint}.{self._hint()}")
        return value

    def _convert(self, text: str) -> SettingValue:
        try:
            return _CONVERT[self.type](text)
        except ValueError as error:
            raise ConfigError(f"{self._pair(text)} is not {error}.{self._hint()}") from None

    def _pair(self, text: str | None) -> str:
        """Name and value for an error text; a secret is hidden."""
        return f"{self.name}=[hidden]" if self.sensitive else f"{self.name}={'' if text is None else text}"

    def _hint(self) -> str:
        return f" The default is {self.name}={self.default_text}" if self.default_text else ""


class ConfigDef:
    """A family of settings under one title ("topic setting"): lookup, parsing, suggestions."""

    def __init__(self, title: str, keys: Iterable[ConfigKey]) -> None:
        self.title = title
        self.keys: dict[str, ConfigKey] = {}
        for key in keys:
            if key.name in self.keys:
                raise ValueError(f"{key.name} is declared twice")
            self.keys[key.name] = key

    def __contains__(self, name: object) -> bool:
        return name in self.keys

    def __iter__(self) -> Iterator[ConfigKey]:
        return iter(self.keys.values())

    def __len__(self) -> int:
        return len(self.keys)

    def key(self, name: str) -> ConfigKey:
        """The setting called `name`; a ConfigError suggests the nearest name."""
        key = self.keys.get(name)
        if key is None:
            raise ConfigError(self.unknown(name))
        return key

    def parse(self, name: str, text: str | None) -> SettingValue:
        """The value of one setting."""
        return self.key(name).parse(text)

    def parse_all(self, texts: Mapping[str, str]) -> dict[str, SettingValue]:
        """The values of the settings in `texts`, without defaults."""
        return {name: self.parse(name, text) for name, text in texts.items()}

    def default(self, name: str) -> SettingValue:
        """The default value; None for a required setting."""
        default = self.key(name).default
        return None if isinstance(default, Required) else default

    def nearest(self, name: str) -> str | None:
        """The known name that is most similar."""
        import difflib  # noqa: PLC0415 - slow to import, and needed for a mistyped name only

        # Environment variables and keyword arguments have underscores for dots.
        matches = difflib.get_close_matches(name.lower().replace("_", "."), self.keys, n=1, cutoff=0.6)
        return matches[0] if matches else None

    def unknown(self, name: str) -> str:
        """The error text for an unknown name."""
        nearest = self.nearest(name)
        hint = f"; did you mean {nearest}?" if nearest else ""
        article = "an" if self.title[0] in "aeiou" else "a"
        return f"{name} is not {article} {self.title}{hint}"


def format_value(value: SettingValue) -> str | None:
    """A value as Kafka writes it in DescribeConfigs: lists joined by commas, doubles as Java prints them."""
    if value is None:
        return None
    if isinstance(value, bool):  # before the numbers: Python's bool is an int, and str(True) is not Kafka's text
        return "true" if value else "false"
    if isinstance(value, float):
        return _java_double(value)
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def _java_double(value: float) -> str:
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if value != value:  # noqa: PLR0124 - the only value unequal to itself is NaN
        return "NaN"
    # Java writes plain decimals within these bounds and the form 1.0E10 outside of them.
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        text = repr(value)
        return text if "e" not in text else f"{value:f}"
    # The digits of repr, which are the shortest that read back as the same number, as Java's are since JDK 19.
    mantissa, _, exponent = f"{value:e}".partition("e")
    digits = repr(value).partition("e")[0].replace(".", "").replace("-", "").strip("0") or "0"
    mantissa = ("-" if value < 0 else "") + digits[0] + "." + (digits[1:] or "0")
    return f"{mantissa}E{int(exponent)}"


def _trim(text: str) -> str:
    # Java's String.trim: every character up to the blank, control characters included.
    return text.strip("".join(map(chr, range(33))))


# ASCII digits only: int() and float() of Python accept more than Java's parsers (1_000, Arabic digits, "inf").
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DOUBLE = re.compile(r"([+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)[dDfF]?")
# Java's Double.parseDouble takes hexadecimal floats and a trailing type letter; so do Kafka's settings.
_HEX_DOUBLE = re.compile(r"([+-]?0[xX][0-9a-fA-F]*\.?[0-9a-fA-F]*[pP][+-]?[0-9]+)[dDfF]?")


# The errors of these functions name what was expected: `_convert` puts "name=value is not" before them.


def _boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError("true or false")
    return lowered == "true"


def _integer(text: str, largest: int) -> int:
    if _INTEGER.fullmatch(text) and -largest - 1 <= int(text) <= largest:
        return int(text)
    raise ValueError(f"a whole number between {-largest - 1} and {largest}")


def _double(text: str) -> float:
    if match := _DOUBLE.fullmatch(text):
        return float(match.group(1))
    if match := _HEX_DOUBLE.fullmatch(text):
        return float.fromhex(match.group(1))
    if text.lstrip("+-") in ("NaN", "Infinity") and text.count("+") + text.count("-") <= 1:
        return float(text)
    raise ValueError("a number")


def _list(text: str) -> tuple[str, ...]:
    # A value that occurs twice counts once, as Kafka parses lists.
    return tuple(dict.fromkeys(re.split(r"\s*,\s*", text))) if text else ()


_CONVERT: Final[dict[ConfigType, Callable[[str], SettingValue]]] = {
    ConfigType.BOOLEAN: _boolean,
    ConfigType.STRING: str,
    ConfigType.SHORT: partial(_integer, largest=MAX_SHORT),
    ConfigType.INT: partial(_integer, largest=MAX_INT),
    ConfigType.LONG: partial(_integer, largest=MAX_LONG),
    ConfigType.DOUBLE: _double,
    ConfigType.LIST: _list,
    ConfigType.CLASS: str,
    ConfigType.PASSWORD: str,
}
