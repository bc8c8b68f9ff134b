"""Record batches: the bytes that producers send, logs store and consumers read.

Owns the batch format, its control batches, codecs and checksum, the per-record kernels (compiled by the install where
a C compiler exists) and the way into Arrow columns. Knows no files, sockets or topics.
"""

from klamm.records.batch import BatchView, DecodedRecord, build_batch, decode_batch, iter_batches
from klamm.records.compression import CODEC_NAMES, Codec
from klamm.records.kernels import all_compiled

INTERPRETED_NOTICE = (
    "The record kernels run interpreted: correct, but many times slower for producing, consuming and compaction. "
    "With a C compiler and Python's headers, `pip install --force-reinstall --no-deps klamm` (in a checkout: "
    "`pip install -e .`) compiles them."
)
"""The line to log once at start when `kernels_compiled()` is false."""


def kernels_compiled() -> bool:
    """Whether per-record work runs as C."""
    return all_compiled()


__all__ = [
    "CODEC_NAMES",
    "INTERPRETED_NOTICE",
    "BatchView",
    "Codec",
    "DecodedRecord",
    "build_batch",
    "decode_batch",
    "iter_batches",
    "kernels_compiled",
]
