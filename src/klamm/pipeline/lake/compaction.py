"""Few large Parquet files out of many small ones, in a folder that others read meanwhile.

A folder of plain files has no transactions: new files beside old ones would be rows twice, and old ones gone first rows
missing. So a partition's folder is made anew, with the merged files and hard links to those that stay, and swapped for
the old one at once. Who lists the folder sees the old files or the new ones; who listed the old ones and opens one of
them later finds it gone, which is an error and never a wrong answer. The ledger's lock keeps writers out
while folders are swapped.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Sequence

from klamm.model.errors import ConfigError
from klamm.pipeline.core.lake_tables import Merge, plan_bins
from klamm.pipeline.lake.folder_exchange import exchange_folders
from klamm.pipeline.lake.folder_log import FolderLog, Move, fsync_path

_SUFFIX = ".parquet"


def plan_merges(ledger: FolderLog, target: int) -> list[Merge]:
    """What a compaction would do, by partition."""
    found = []
    for folder in _folders(ledger):
        _, sizes = _files(folder)
        groups = plan_bins(sizes, target)
        if groups:
            total = sum(sizes[place] for group in groups for place in group)
            inside = os.path.relpath(folder, ledger.path)
            found.append(Merge("" if inside == "." else inside, sum(map(len, groups)), len(groups), total))
    return found


def compact_folder(ledger: FolderLog, target: int, advance: Callable[[int], None]) -> int:
    """Merge small files, partition by partition; returns how many files were replaced. Writers wait for swaps alone."""
    done = 0
    work = os.path.join(ledger.side, "compaction")
    with ledger.locked("compacting"):
        shutil.rmtree(work, ignore_errors=True)
        for folder in _folders(ledger):
            names, sizes = _files(folder)
            groups = [[names[place] for place in group] for group in plan_bins(sizes, target)]
            if not groups:
                continue
            new = os.path.join(work, uuid.uuid4().hex)
            os.makedirs(new)
            for group in groups:
                merged = os.path.join(new, f"merged-{uuid.uuid4().hex}.parquet")
                _merge([os.path.join(folder, name) for name in group], merged)
            with ledger.locked():
                # A driver that died in the middle of its moves: the next one looks for the files where they went.
                ledger.settle_all()
                if _linked(folder, new, {name for group in groups for name in group}):
                    exchange_folders(new, folder)
                    fsync_path(os.path.dirname(folder))
                    done += sum(map(len, groups))
            advance(done)
            shutil.rmtree(new)
        shutil.rmtree(work, ignore_errors=True)
    return done


def replace_partitions(ledger: FolderLog, moves: Sequence[Move]) -> None:
    """Put files in the place of all others of their folders, a folder at a time. Needs the lock."""
    folders: dict[str, list[Move]] = {}
    for move in moves:
        folders.setdefault(os.path.dirname(move.final), []).append(move)
    work = os.path.join(ledger.side, "replacing")
    shutil.rmtree(work, ignore_errors=True)
    for inside, group in sorted(folders.items()):
        new, folder = os.path.join(work, uuid.uuid4().hex), os.path.join(ledger.path, inside)
        os.makedirs(new)
        for each in group:
            staged = os.path.join(ledger.side, each.staged)
            fsync_path(staged)
            os.replace(staged, os.path.join(new, os.path.basename(each.final)))
        fsync_path(new)
        os.makedirs(folder, exist_ok=True)
        exchange_folders(new, folder)
        fsync_path(os.path.dirname(folder))
        shutil.rmtree(new)
    shutil.rmtree(work, ignore_errors=True)


def _folders(ledger: FolderLog) -> list[str]:
    """The folders that hold files; one that holds folders as well cannot be swapped."""
    found = []
    for folder, inside, names in os.walk(ledger.path):
        inside[:] = sorted(each for each in inside if not each.startswith(("_", ".")))
        if not any(_counts(name) for name in names):
            continue
        below = [each for each in os.listdir(folder) if os.path.isdir(os.path.join(folder, each))]
        if below:
            raise ConfigError(f"{folder} holds files and the folder {below[0]}: a folder of both is not compacted")
        found.append(folder)
    return found


def _counts(name: str) -> bool:
    return name.endswith(_SUFFIX) and not name.startswith(("_", "."))


def _files(folder: str) -> tuple[list[str], list[int]]:
    names = sorted(each for each in os.listdir(folder) if _counts(each))
    return names, [os.path.getsize(os.path.join(folder, name)) for name in names]


def _linked(old: str, new: str, merged: set[str]) -> bool:
    """Make the folder complete by what stays of the old one; False when somebody has replaced its files meanwhile."""
    there = os.listdir(old)
    if not merged <= set(there):
        return False
    for name in there:
        if name not in merged:
            os.link(os.path.join(old, name), os.path.join(new, name))
    fsync_path(new)
    return True


def _merge(paths: Sequence[str], target: str) -> None:
    """The rows of files in one file, a batch at a time; columns that some of them lack are null there."""
    import pyarrow as pa  # type: ignore[import-untyped] # noqa: PLC0415 - an extra
    import pyarrow.dataset as ds  # type: ignore[import-untyped] # noqa: PLC0415
    import pyarrow.parquet as pq  # type: ignore[import-untyped] # noqa: PLC0415

    schema = pa.unify_schemas([pq.read_schema(path) for path in paths])
    rows = sum(pq.read_metadata(path).num_rows for path in paths)
    whole = ds.dataset(list(paths), schema=schema, format="parquet", partitioning=None)
    with pq.ParquetWriter(target, schema, compression="snappy") as writer:
        for batch in whole.to_batches():
            if batch.num_rows:
                writer.write_batch(batch)
    found = pq.read_metadata(target).num_rows
    if found != rows:
        raise ConfigError(f"{len(paths)} files of {rows} rows became {found} rows; nothing was changed")
    fsync_path(target)
