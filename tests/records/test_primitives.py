"""What kernels share exists twice, as C and as Python: the names, their values and their parameters are the same."""

import inspect
import re
from pathlib import Path

import pytest

from klamm.records.kernels import layout, primitives

FOLDER = Path(layout.__file__).parent


def test_the_constants_of_both_forms_are_equal():
    text = (FOLDER / "layout.pxd").read_text()
    compiled = {name: int(value, 0) for name, value in re.findall(r"^    ([A-Z0-9_]+) = (\w+)$", text, re.MULTILINE)}
    assert compiled == {name: value for name, value in vars(layout).items() if name.isupper()}


def test_the_functions_of_both_forms_take_the_same():
    text = (FOLDER / "primitives.pxd").read_text()
    compiled = {
        name: [parameter.split()[-1].lstrip("*") for parameter in parameters.split(",")]
        for name, parameters in re.findall(r"^cdef inline [\w *]*?[ *](\w+)\(([^)]*)\)", text, re.MULTILINE)
    }
    assert len(compiled) > 25
    for name, parameters in compiled.items():
        assert list(inspect.signature(getattr(primitives, name)).parameters) == parameters, name


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_integers_are_written_as_they_are_read(size):
    read = {2: primitives.read_int16, 4: primitives.read_int32, 8: primitives.read_int64}
    for value in (0, 1, -1, (1 << 8 * size - 1) - 1, -(1 << 8 * size - 1)):
        buffer = bytearray(size + 2)
        assert primitives.write_int(buffer, 1, value, size) == size + 1
        assert size not in read or read[size](buffer, 1) == value
        assert int.from_bytes(buffer[1:-1], "big", signed=True) == value
        assert buffer[0] == buffer[-1] == 0
