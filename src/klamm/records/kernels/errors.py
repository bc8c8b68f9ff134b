"""What is wrong with the records of a batch, in words."""

from klamm.model.errors import CorruptBatch


def corrupt_record(index: int, count: int) -> CorruptBatch:
    """The bytes of a record do not add up."""
    return CorruptBatch(f"record {index} of {count} does not fit the bytes that should hold it")


def trailing_bytes(count: int, left: int) -> CorruptBatch:
    """The records end before the bytes do."""
    return CorruptBatch(f"{left} bytes are left after the batch's {count} records")


def beyond_64_bits(index: int) -> CorruptBatch:
    """Base plus delta overflows."""
    return CorruptBatch(f"record {index} has a timestamp or offset beyond 64 bits")
