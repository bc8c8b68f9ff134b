r"""The syntax of topic patterns: what RE2 accepts, read into a tree.

Consumers subscribe with patterns the broker resolves, and Kafka reads them with RE2. Topic names are ASCII, so a set of
characters is an integer with a bit per character, and everything beyond ASCII is a set that matches nothing.
Refused, as RE2 does: back references, look-around, `\Z`, possessive and doubled repetitions, counts above 1,000.
"""

import unicodedata
from dataclasses import dataclass
from typing import Final

COUNT_MAX: Final = 1000
DEPTH_MAX: Final = 100
"""How deep groups may nest; reading them is recursive."""


class InvalidPattern(ValueError):
    """A pattern that is not RE2 syntax, or that would cost too much; the text describes the error."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of a set."""

    mask: int


@dataclass(frozen=True, slots=True)
class Edge:
    """A place between characters: "begin", "end", "word" or "inside"."""

    kind: str


@dataclass(frozen=True, slots=True)
class Sequence:
    """Parts one after the other."""

    parts: tuple["PatternNode", ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several ways."""

    ways: tuple["PatternNode", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part between `least` and `most` times; None is any number."""

    part: "PatternNode"
    least: int
    most: int | None


PatternNode = Chars | Edge | Sequence | Choice | Repeat

_ALL: Final = (1 << 128) - 1


def mask_of(characters: str) -> int:
    """The set of these characters."""
    mask = 0
    for character in characters:
        if ord(character) < 128:
            mask |= 1 << ord(character)
    return mask


_DIGITS: Final = "0123456789"
_LOWER: Final = "abcdefghijklmnopqrstuvwxyz"
_UPPER: Final = _LOWER.upper()
_PUNCTUATION: Final = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
WORD: Final = mask_of(_DIGITS + _LOWER + _UPPER + "_")
_NEWLINE: Final = mask_of("\n")

_PERL: Final = {"d": mask_of(_DIGITS), "w": WORD, "s": mask_of("\t\n\f\r ")}
_POSIX: Final = {
    "alnum": mask_of(_DIGITS + _LOWER + _UPPER),
    "alpha": mask_of(_LOWER + _UPPER),
    "ascii": _ALL,
    "blank": mask_of("\t "),
    "cntrl": (1 << 32) - 1 | 1 << 127,
    "digit": mask_of(_DIGITS),
    "graph": mask_of(_DIGITS + _LOWER + _UPPER + _PUNCTUATION),
    "lower": mask_of(_LOWER),
    "print": mask_of(_DIGITS + _LOWER + _UPPER + _PUNCTUATION + " "),
    "punct": mask_of(_PUNCTUATION),
    "space": mask_of("\t\n\v\f\r "),
    "upper": mask_of(_UPPER),
    "word": WORD,
    "xdigit": mask_of(_DIGITS + "abcdefABCDEF"),
}
_CONTROLS: Final = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_SCRIPTS: Final = {"Any": _ALL, "Latin": mask_of(_LOWER + _UPPER)} | dict.fromkeys(
    ("Arabic", "Armenian", "Cyrillic", "Greek", "Han", "Hangul", "Hebrew", "Hiragana", "Katakana", "Thai"), 0
)
_CATEGORIES: Final = (
    {unicodedata.category(chr(code)) for code in range(128)} | set("LMNPSZC") | {"Lt", "Lo", "Nl", "No"}
)
"""The general categories a pattern may name; those without an ASCII character match nothing."""


def parse(pattern: str) -> PatternNode:
    """The tree of a pattern; InvalidPattern when it has none."""
    reader = _PatternReader(pattern)
    node = reader.choice(0)
    if reader.at < len(pattern):
        raise InvalidPattern("unexpected )")
    return node


class _PatternReader:
    """Recursive descent over one pattern."""

    def __init__(self, pattern: str) -> None:
        self.text = pattern
        self.at = 0
        self.fold = False
        self.dot_all = False

    def _peek(self, token: str) -> bool:
        return self.text.startswith(token, self.at)

    def _accept(self, token: str) -> bool:
        if not self._peek(token):
            return False
        self.at += len(token)
        return True

    def _next(self, missing: str) -> str:
        if self.at >= len(self.text):
            raise InvalidPattern(missing)
        self.at += 1
        return self.text[self.at - 1]

    def choice(self, depth: int) -> PatternNode:
        """Ways separated by bars, up to a closing parenthesis or the end."""
        if depth > DEPTH_MAX:
            raise InvalidPattern("nested too deeply")
        fold, dot_all = self.fold, self.dot_all
        ways = [self._sequence(depth)]
        while self._accept("|"):
            ways.append(self._sequence(depth))
        self.fold, self.dot_all = fold, dot_all
        return ways[0] if len(ways) == 1 else Choice(tuple(ways))

    def _sequence(self, depth: int) -> PatternNode:
        parts: list[PatternNode] = []
        while self.at < len(self.text) and not self._peek("|") and not self._peek(")"):
            if self._accept("\\Q"):
                end = self.text.find("\\E", self.at)
                quoted = self.text[self.at : end if end >= 0 else len(self.text)]
                self.at += len(quoted) + (2 if end >= 0 else 0)
                parts += [self._literal(character) for character in quoted]
            else:
                atom = self._atom(depth)
                if atom is not None:
                    parts.append(self._parse_repetition(atom))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _parse_repetition(self, atom: PatternNode) -> PatternNode:
        count = self._count()
        if count is None:
            return atom
        self._accept("?")  # lazy or greedy: a whole name matches or does not
        if self._count() is not None:
            raise InvalidPattern("a repetition of a repetition")
        return Repeat(atom, *count)

    def _count(self) -> tuple[int, int | None] | None:
        for sign, count in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._accept(sign):
                return count
        if not self._peek("{"):
            return None
        end = self.text.find("}", self.at)
        least, comma, most = self.text[self.at + 1 : max(end, self.at + 1)].partition(",")
        # RE2 takes a brace that is no repetition as a literal.
        if end < 0 or not _is_number(least) or not (most == "" or _is_number(most)):
            return None
        # Nine digits exceed the limit already, and int() of a long text takes long.
        low = int(least[:9])
        high = low if not comma else int(most[:9]) if most else None
        if low > COUNT_MAX or (high is not None and (high > COUNT_MAX or high < low)):
            raise InvalidPattern(f"a repetition outside 0 to {COUNT_MAX}: {self.text[self.at : end + 1]}")
        self.at = end + 1
        return low, high

    def _atom(self, depth: int) -> PatternNode | None:
        character = self._next("an empty pattern")
        if character == "(":
            return self._group(depth)
        if character == "[":
            return Chars(self._class())
        if character == ".":
            return Chars(_ALL if self.dot_all else _ALL & ~_NEWLINE)
        if character in "^$":
            return Edge("begin" if character == "^" else "end")
        if character == "\\":
            return self._escape()
        if character in "*+?":
            raise InvalidPattern(f"nothing to repeat before {character}")
        if character == "{":
            self.at -= 1
            if self._count() is not None:
                raise InvalidPattern("nothing to repeat before {")
            self.at += 1
        return self._literal(character)

    def _group(self, depth: int) -> PatternNode | None:
        fold, dot_all = self.fold, self.dot_all
        if self._accept("?"):
            if self._accept("P<") or (
                self._peek("<") and not self._peek("<=") and not self._peek("<!") and self._accept("<")
            ):
                name = self._until(">", "a group name without >")
                if not name.isidentifier():
                    raise InvalidPattern(f"a bad group name: {name}")
            elif not self._flags():
                return None
        node = self.choice(depth + 1)
        if not self._accept(")"):
            raise InvalidPattern("missing )")
        self.fold, self.dot_all = fold, dot_all
        return node

    def _flags(self) -> bool:
        """Read flags; whether a group follows (`(?i:`) rather than the rest of this one (`(?i)`)."""
        on = True
        while True:
            flag = self._next("flags without )")
            if flag in ":)":
                return flag == ":"
            if flag == "-":
                on = False
            elif flag == "i":
                self.fold = on
            elif flag == "s":
                self.dot_all = on
            # m and U make no difference: a name has no line breaks, and laziness does not change whether it matches.
            elif flag not in "mU":
                raise InvalidPattern(f"an unknown group or flag: (?{flag}")

    def _until(self, end: str, missing: str) -> str:
        stop = self.text.find(end, self.at)
        if stop < 0:
            raise InvalidPattern(missing)
        text = self.text[self.at : stop]
        self.at = stop + 1
        return text

    def _literal(self, character: str) -> Chars:
        return Chars(self._fold_case(mask_of(character)))

    def _fold_case(self, mask: int) -> int:
        if self.fold:
            # Letters of both cases are 32 apart in ASCII.
            mask |= (mask & _POSIX["lower"]) >> 32 | (mask & _POSIX["upper"]) << 32
        return mask

    def _escape(self) -> PatternNode:
        character = self._next("a backslash at the end")
        if character in "AzbB":
            return Edge({"A": "begin", "z": "end", "b": "word", "B": "inside"}[character])
        mask = self._named_set(character)
        if mask is None:
            mask = mask_of(self._parse_escape(character))
        return Chars(self._fold_case(mask))

    def _named_set(self, character: str) -> int | None:
        if character.lower() in _PERL:
            mask = _PERL[character.lower()]
            return mask if character.islower() else _ALL & ~mask
        if character not in "pP":
            return None
        name = self._until("}", "a class without }") if self._accept("{") else self._next("a class without a name")
        negated = (character == "P") != name.startswith("^")
        name = name.removeprefix("^")
        if name in _SCRIPTS:
            mask = _SCRIPTS[name]
        elif name in _CATEGORIES:
            mask = sum(1 << code for code in range(128) if unicodedata.category(chr(code)).startswith(name))
        else:
            raise InvalidPattern(f"an unknown class: {name}")
        return _ALL & ~mask if negated else mask

    def _parse_escape(self, character: str) -> str:
        """The character an escape stands for."""
        if character in _CONTROLS:
            return _CONTROLS[character]
        if character == "x":
            digits = (
                self._until("}", "a character without }")
                if self._accept("{")
                else self._next("\\x") + self._next("\\x")
            )
            if (
                not digits
                or any(digit not in "0123456789abcdefABCDEF" for digit in digits)
                or int(digits, 16) > 0x10FFFF
            ):
                raise InvalidPattern(f"a bad character: \\x{digits}")
            return chr(int(digits, 16))
        if character == "0" or (character in "1234567" and self.text[self.at : self.at + 1] in tuple("01234567")):
            digits = character
            while len(digits) < 3 and self.text[self.at : self.at + 1] in tuple("01234567"):
                digits += self._next("")
            return chr(int(digits, 8))
        if character.isascii() and not character.isalnum():
            return character
        raise InvalidPattern(f"an unknown escape: \\{character}")

    def _class(self) -> int:
        """The set inside square brackets; the opening one has been read."""
        negated = self._accept("^")
        mask, first = 0, True
        # A closing bracket in first place is a literal.
        while first or not self._peek("]"):
            first = False
            if self._accept("[:"):
                name = self._until(":", "a class without :]")
                if not self._accept("]") or name.removeprefix("^") not in _POSIX:
                    raise InvalidPattern(f"an unknown class: [:{name}:]")
                named = _POSIX[name.removeprefix("^")]
                mask |= _ALL & ~named if name.startswith("^") else named
                continue
            low = self._next("missing ]")
            if low == "\\":
                escape = self._next("missing ]")
                set_ = self._named_set(escape)
                if set_ is not None:
                    mask |= set_
                    continue
                low = self._parse_escape(escape)
            high = low
            if self._peek("-") and not self._peek("-]"):
                self.at += 1
                high = self._next("missing ]")
                if high == "\\":
                    high = self._parse_escape(self._next("missing ]"))
                if high < low:
                    raise InvalidPattern(f"a range that runs backwards: {low}-{high}")
            if ord(low) < 128:
                mask |= (2 << min(ord(high), 127)) - (1 << ord(low))
        self.at += 1
        mask = self._fold_case(mask)
        return _ALL & ~mask if negated else mask


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()
