"""Kafka's flags: `--name value`, `--name=value`, `-name value`, names written whole, as joptsimple reads them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

_INTEGER = re.compile(r"[+-]?[0-9]+")
VERSION: Final = "4.3.1"
"""What --version answers: the Kafka whose flags and output these are."""


class Usage(Exception):
    """The command line cannot be obeyed: a sentence, followed by the flags when `flags` is true."""

    def __init__(self, message: str, *, flags: bool = True) -> None:
        super().__init__(message)
        self.flags = flags


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: `takes` is the name of its value, None when it has none; `optional` when it may be left out."""

    name: str
    help: str
    takes: str | None = None
    optional: bool = False
    letter: str | None = None


@dataclass(slots=True)
class Parsed:
    """What was written."""

    flags: dict[str, list[str]] = field(default_factory=dict)
    rest: list[str] = field(default_factory=list)

    def has(self, name: str) -> bool:
        """Whether a flag was written."""
        return name in self.flags

    def get(self, name: str, default: str | None = None) -> str | None:
        """The value of a flag; writing it twice is a mistake, as in Kafka."""
        values = self.flags.get(name)
        if not values:
            return default
        if len(values) > 1:
            raise Usage(f"Found multiple arguments for option {name}, but you asked for only one", flags=False)
        return values[0]

    def text(self, name: str, default: str = "") -> str:
        """The value of a flag as text."""
        value = self.get(name, default)
        return default if value is None else value

    def integer(self, name: str, default: int | None = None, *, bits: int = 32) -> int | None:
        """The value of a flag as a number of Java's: an int, or a long with 64 `bits`."""
        text = self.get(name)
        if text is None:
            return default
        number = java_integer(text, bits)
        if number is None:
            raise Usage(f"Cannot parse argument '{text}' of option {name}", flags=False)
        return number

    def all(self, *names: str) -> list[str]:
        """Every value of some flags, in the order of the names."""
        return [value for name in names for value in self.flags.get(name, ())]

    def pairs(self, *names: str) -> dict[str, str]:
        """`key=value` pairs of some flags; a bare key has an empty value."""
        properties = {}
        for pair in self.all(*names):
            key, _, value = pair.partition("=")
            properties[key] = value
        return properties


def java_integer(text: str, bits: int = 32) -> int | None:
    """A number as Java reads one: a sign and digits, within bounds; None for anything else."""
    if _INTEGER.fullmatch(text) is None:
        return None
    number = int(text)
    # Integer.parseInt and Long.parseLong refuse what does not fit.
    return number if -(1 << bits - 1) <= number < 1 << bits - 1 else None


class Flags:
    """The flags of one script."""

    def __init__(self, script: str, *flags: Flag) -> None:
        self.script = script
        common = (
            Flag("help", "Print this text."),
            Flag("version", "Print the version of Kafka these flags are those of."),
        )
        self.flags = {flag.name: flag for flag in (*flags, *common)}
        self._letters = {flag.letter: flag.name for flag in self.flags.values() if flag.letter}

    def parse(self, args: Sequence[str]) -> Parsed:
        """What was written; Usage for a flag the script does not have."""
        parsed = Parsed()
        queue = list(args)
        while queue:
            word = queue.pop(0)
            # A negative number is an argument, not a flag: --shift-by -10.
            if not word.startswith("-") or word == "-" or word.lstrip("-")[:1].isdigit():
                parsed.rest.append(word)
                continue
            # joptsimple takes one dash or two.
            name, equals, value = word.lstrip("-").partition("=")
            name = self._letters.get(name, name)
            flag = self.flags.get(name)
            if flag is None:
                raise Usage(f"{name} is not a recognized option", flags=False)
            values = parsed.flags.setdefault(name, [])
            if flag.takes is None:
                continue
            if equals:
                values.append(value)
            elif queue and (not queue[0].startswith("-") or queue[0].lstrip("-")[:1].isdigit() or queue[0] == "-"):
                values.append(queue.pop(0))
            elif not flag.optional:
                raise Usage(f"Option {name} requires an argument", flags=False)
        return parsed

    def usage(self) -> str:
        """Every flag and what it is for."""
        rows = []
        for flag in sorted(self.flags.values(), key=attrgetter("name")):
            left = f"--{flag.name}" + (f" <{flag.takes}>" if flag.takes else "")
            rows.append((left, flag.help))
        width = min(max(len(left) for left, _ in rows), 44) + 2
        lines = [f"{'Option':<{width}}Description", f"{'------':<{width}}-----------"]
        for left, text in rows:
            if len(left) >= width:
                lines += [left, f"{'':<{width}}{text}"]
            else:
                lines.append(f"{left:<{width}}{text}")
        return "\n".join(lines)


def require(parsed: Parsed, *names: str) -> None:
    """Usage unless all flags were written."""
    for name in names:
        if not parsed.has(name):
            raise Usage(f'Missing required argument "[{name}]"')


def one_action(parsed: Parsed, names: Iterable[str], sentence: str) -> str:
    """The one action that was written; Usage with Kafka's sentence otherwise."""
    written = [name for name in names if parsed.has(name)]
    if len(written) != 1:
        raise Usage(sentence)
    return written[0]


BOOTSTRAP: Final = Flag("bootstrap-server", "Brokers to begin with, HOST:PORT,... (required).", "addresses")
COMMAND_CONFIG: Final = Flag("command-config", "A properties file with client settings.", "file")
