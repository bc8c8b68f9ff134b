"""Record batches: the bytes that producers send, logs store and consumers read.

Owns the batch format, its control batches, codecs and checksum, the per-record kernels (compiled by the install where
a C compiler exists) and the way into Arrow columns. Knows no files, sockets or topics.
"""

import importlib.machinery
import importlib.util
import sys

from klamm.model.switches import interpreted_kernels


def _load_interpreted() -> None:
    """Put the Python form of the kernels where every import of them will find it, before any import does."""
    name = f"{__name__}.kernels"
    loader = importlib.machinery.SourceFileLoader(name, f"{__path__[0]}/kernels.py")
    spec = importlib.util.spec_from_file_location(name, loader.path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)


if interpreted_kernels():
    _load_interpreted()

from klamm.records import kernels  # noqa: E402 - after the switch above
from klamm.records.batch import BatchView, Record, build_batch, decode_batch, iter_batches  # noqa: E402
from klamm.records.compression import CODEC_NAMES, Codec  # noqa: E402

INTERPRETED_NOTICE = (
    "The record kernels run interpreted: correct, but many times slower for producing, consuming and compaction. "
    "With a C compiler and Python's headers, `pip install --force-reinstall --no-deps klamm` (in a checkout: "
    "`pip install -e .`) compiles them."
)
"""The line to log once at start when `kernels_compiled()` is false."""


def kernels_compiled() -> bool:
    """Whether per-record work runs as C."""
    return bool(kernels.COMPILED)


__all__ = [
    "CODEC_NAMES",
    "INTERPRETED_NOTICE",
    "BatchView",
    "Codec",
    "Record",
    "build_batch",
    "decode_batch",
    "iter_batches",
    "kernels_compiled",
]
