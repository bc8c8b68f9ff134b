"""CRC-32C: published answers, any buffer, continued."""

import subprocess
import sys

import pytest

from klamm.records.crc import crc32c


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_answers_of_rfc_3720(data, answer):
    assert crc32c(data) == answer


def test_takes_writable_views_without_a_copy_and_continues():
    data = bytearray(b"xx123456789")
    assert crc32c(memoryview(data)[2:]) == 0xE3069283
    assert crc32c(b"6789", crc32c(b"12345")) == 0xE3069283


def test_the_package_and_the_bare_extension_agree_in_one_process():
    import crc32c as package

    assert package.hardware_based == __import__("klamm.records.crc", fromlist=["x"]).crc32c.__self__.hardware_based
    assert package.crc32c(b"klamm") == crc32c(b"klamm")


def test_importing_records_does_not_read_package_metadata():
    program = "import sys, klamm.records; print('importlib.metadata' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
