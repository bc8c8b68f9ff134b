"""How many records per second the kernels encode and decode, compiled and interpreted, beside aiokafka's.

Run: python benchmarks/records.py [--json FILE]. CPU time, best of some rounds, 10,000 records of 100-byte values with
9-byte keys and no headers unless a row says otherwise.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from klamm.records import INTERPRETED_NOTICE, BatchView, arrow, build_batch, columnar, kernels_compiled
from klamm.records.batch import HEADER_SIZE
from klamm.records.compression import Codec, compress, decompress
from klamm.records.kernels import decode, encode

COUNT = 10_000
ROUNDS = 25
BASE_MS = 1_700_000_000_000


def interpreted(module: ModuleType) -> Any:
    """The Python form of a kernel, beside whatever form is imported."""
    name = module.__name__.rpartition(".")[2]
    path = str(Path(module.__file__ or "").with_name(f"{name}.py"))
    loader = SourceFileLoader(f"{name}_interpreted", path)
    spec = spec_from_file_location(loader.name, path, loader=loader)
    assert spec is not None
    loaded = module_from_spec(spec)
    loader.exec_module(loaded)
    return loaded


def best(work: Callable[[], Any], rounds: int = ROUNDS) -> float:
    """Least CPU seconds of one call; freeing its result is not counted."""
    least = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        result = work()
        least = min(least, time.process_time() - start)
        del result
    return least


def rows(headers: int = 0) -> list[tuple[Any, ...]]:
    pairs = [(f"header-{i}", b"some value") for i in range(headers)]
    return [(BASE_MS + i // 10, b"key%06d" % i, b"%0100d" % i, pairs) for i in range(COUNT)]


def kernel_rows(results: dict[str, float]) -> None:
    for label, encoder, decoder in (
        ("compiled", encode, decode),
        ("interpreted", interpreted(encode), interpreted(decode)),
    ):
        if label == "compiled" and not kernels_compiled():
            print(INTERPRETED_NOTICE)
            continue
        rounds = ROUNDS if label == "compiled" else 2
        for headers in (0, 2):
            records = rows(headers)
            data = bytes(encoder.encode_records(records, BASE_MS)[0])
            suffix = f" {label}" + (f", {headers} headers" if headers else "")
            for name, work in (
                ("encode", partial(encoder.encode_records, records, BASE_MS, HEADER_SIZE)),
                ("decode", partial(decoder.decode_records, data, COUNT, 0, BASE_MS)),
            ):
                results[name + suffix] = COUNT / best(work, rounds) / 1e6


def batch_rows(results: dict[str, float]) -> None:
    batch = build_batch(rows())
    view = BatchView(batch)
    results["build_batch (with crc)"] = COUNT / best(partial(build_batch, rows_once)) / 1e6
    results["BatchView.decode (Record)"] = COUNT / best(view.decode) / 1e6
    results["columns"] = COUNT / best(partial(columnar.decode_columns, batch)) / 1e6
    table = arrow.to_arrow(batch, "topic", 0)
    results["columns to pyarrow RecordBatch"] = COUNT / best(partial(arrow.to_arrow, batch, "topic", 0)) / 1e6
    results["pyarrow RecordBatch to batch"] = COUNT / best(partial(arrow.from_arrow, table, now_ms=0)) / 1e6


def aiokafka_rows(results: dict[str, float]) -> None:
    """Not quite like for like: one append per record, a record object each; its checksum is left out here."""
    try:
        from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
    except ImportError:
        return

    def encode() -> Any:
        builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 22)
        for index, (timestamp, key, value, headers) in enumerate(rows_once):
            builder.append(index, timestamp, key, value, headers)
        return builder.build()

    batch = bytes(build_batch(rows_once))
    results["aiokafka encode"] = COUNT / best(encode, 5) / 1e6
    results["aiokafka decode"] = COUNT / best(lambda: list(DefaultRecordBatch(batch)), 5) / 1e6


def codec_rows(results: dict[str, float]) -> None:
    data = bytes(encode.encode_records(rows(), BASE_MS)[0])
    for codec in list(Codec)[1:]:
        packed = compress(codec, data)
        results[f"{codec.name.lower()} compress MB/s"] = len(data) / best(partial(compress, codec, data), 3) / 1e6
        results[f"{codec.name.lower()} decompress MB/s"] = len(data) / best(partial(decompress, codec, packed), 5) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="also write the numbers to this file")
    arguments = parser.parse_args()
    results: dict[str, float] = {}
    kernel_rows(results)
    batch_rows(results)
    aiokafka_rows(results)
    codec_rows(results)
    for name, value in results.items():
        print(f"{name:40s} {value:10.2f}" + ("" if "MB/s" in name else " M records/s"))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=2))


rows_once = rows()

if __name__ == "__main__":
    main()
