"""Floating-point numbers as Java prints them: the fewest digits that identify them. Pure."""

from __future__ import annotations

import math
import struct
from decimal import Decimal


def double_text(number: float) -> str:
    """What `Double.toString` makes of a number."""
    special = _special(number)
    if special:
        return special
    short = Decimal(repr(number))
    # Where one digit would do, Java prints the nearest of two digits.
    return _laid_out(Decimal(f"{number:.1e}") if len(short.normalize().as_tuple().digits) == 1 else short)


def float_text(number: float) -> str:
    """What `Float.toString` makes of a number of 32 bits."""
    special = _special(number)
    if special:
        return special
    packed = struct.pack(">f", number)
    # Nine digits identify every 32-bit float; Java prints at least two.
    for digits in range(2, 10):
        short = f"{number:.{digits}g}"
        try:
            if struct.pack(">f", float(short)) == packed:
                return _laid_out(Decimal(short))
        except OverflowError:  # rounded up beyond the largest: another digit is needed
            continue
    return _laid_out(Decimal(repr(number)))


def _special(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    if number == 0:
        return "-0.0" if math.copysign(1, number) < 0 else "0.0"
    return ""


def _laid_out(number: Decimal) -> str:
    """Plain between a thousandth and ten million, with an exponent elsewhere; always with a point."""
    sign, digits, exponent = number.normalize().as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    magnitude = len(text) + exponent - 1
    minus = "-" if sign else ""
    # The limits of Double.toString: 10^-3 and 10^7.
    if -3 <= magnitude < 7:
        if magnitude < 0:
            return f"{minus}0.{'0' * (-magnitude - 1)}{text}"
        whole = text[: magnitude + 1].ljust(magnitude + 1, "0")
        return f"{minus}{whole}.{text[magnitude + 1 :] or '0'}"
    return f"{minus}{text[0]}.{text[1:] or '0'}E{magnitude}"
