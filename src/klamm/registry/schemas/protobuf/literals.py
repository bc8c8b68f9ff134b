"""Numbers, strings and names as .proto text and descriptors write them."""

from __future__ import annotations

import re
import struct


def read_float(text: str) -> float:
    """Return the value of a number of .proto text."""
    return float(int(text, 16) if text[:2] in ("0x", "0X") else text.rstrip("fF"))


def camel_case(name: str) -> str:
    """Return `my_map` as `MyMap`, as entries of maps are named."""
    return re.sub(r"(?:^|_)([^_]?)", _capitalize, name)


def json_name(name: str) -> str:
    """Return `my_field` as `myField`."""
    return re.sub(r"_+([^_]?)", _capitalize, name)


def _capitalize(match: re.Match[str]) -> str:
    return match.group(1).upper()


def escape_bytes(content: bytes) -> str:
    r"""Return bytes as text with `\n` and octal escapes, as defaults of bytes are stored."""
    escapes = {9: r"\t", 10: r"\n", 13: r"\r", 34: r"\"", 39: r"\'", 92: r"\\"}
    return "".join(escapes.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}") for byte in content)


def format_float(value: float) -> str:
    """Return a number in the shortest way that reads the same, without a needless fraction."""
    text = f"{value:.15g}"
    return text if float(text) == value else f"{value:.17g}"


def format_single(value: float) -> str:
    """Return a number of 32 bits, as `format_float` does."""
    text = f"{value:.6g}"
    return text if _round_single(float(text)) == _round_single(value) else f"{value:.9g}"


def _round_single(value: float) -> float:
    try:
        rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return value
    return rounded


def escape_text(content: bytes) -> str:
    """Return bytes as a string of .proto text; characters stay readable where the bytes are UTF-8."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return escape_bytes(content)
    return "".join(
        character if character.isprintable() and character not in '"\\' else escape_bytes(character.encode())
        for character in text
    ).replace("\\'", "'")
