"""Merges small Parquet files of a folder into large ones while others read it.

A folder of plain files has no transactions: merged files added before the small ones are removed would show rows twice,
added after they are removed would hide rows. So a partition's folder is built anew, with the merged files and hard
links to the others, and exchanged for the old one atomically. A reader that lists the folder sees the old files or the
new ones; one that listed the old files and opens one of them later gets an error, never a wrong result. The folder
log's lock keeps writers out while folders are exchanged.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Sequence

from klamm.model.errors import ConfigError
from klamm.pipeline.core.lake_tables import Merge, plan_bins
from klamm.pipeline.lake.folder_exchange import exchange_folders
from klamm.pipeline.lake.folder_log import FileMove, FolderLog, fsync_path

_SUFFIX = ".parquet"


def plan_merges(log: FolderLog, target: int) -> list[Merge]:
    """Return what a compaction would do, by partition."""
    merges = []
    for folder in _folders(log):
        _, sizes = _files(folder)
        groups = plan_bins(sizes, target)
        if groups:
            total = sum(sizes[index] for group in groups for index in group)
            relative = os.path.relpath(folder, log.path)
            merges.append(Merge("" if relative == "." else relative, sum(map(len, groups)), len(groups), total))
    return merges


def compact_folder(log: FolderLog, target: int, advance: Callable[[int], None]) -> int:
    """Merge small files, partition by partition; return how many were replaced. Writers wait only for exchanges."""
    replaced = 0
    work = os.path.join(log.side, "compaction")
    with log.hold_lock("compacting"):
        shutil.rmtree(work, ignore_errors=True)
        for folder in _folders(log):
            names, sizes = _files(folder)
            groups = [[names[index] for index in group] for group in plan_bins(sizes, target)]
            if not groups:
                continue
            new_folder = os.path.join(work, uuid.uuid4().hex)
            os.makedirs(new_folder)
            for group in groups:
                # A new name every time: a reader that lists old and new folders never takes one file for another.
                merged = os.path.join(new_folder, f"merged-{uuid.uuid4().hex}.parquet")
                _merge([os.path.join(folder, name) for name in group], merged)
            with log.hold_lock():
                # A driver may have died in the middle of its moves. They are finished first: the next driver looks for
                # the moved files by name, and would miss those that are merged here.
                log.finish_decided()
                if _link_unmerged(folder, new_folder, {name for group in groups for name in group}):
                    exchange_folders(new_folder, folder)
                    fsync_path(os.path.dirname(folder))
                    replaced += sum(map(len, groups))
            advance(replaced)
            shutil.rmtree(new_folder)
        shutil.rmtree(work, ignore_errors=True)
    return replaced


def replace_partitions(log: FolderLog, moves: Sequence[FileMove]) -> None:
    """Replace all files of the folders that `moves` lead to, a folder at a time. Needs the lock."""
    folders: dict[str, list[FileMove]] = {}
    for move in moves:
        folders.setdefault(os.path.dirname(move.final), []).append(move)
    work = os.path.join(log.side, "replacing")
    shutil.rmtree(work, ignore_errors=True)
    for relative, group in sorted(folders.items()):
        new_folder, folder = os.path.join(work, uuid.uuid4().hex), os.path.join(log.path, relative)
        os.makedirs(new_folder)
        for move in group:
            staged = os.path.join(log.side, move.staged)
            fsync_path(staged)
            os.replace(staged, os.path.join(new_folder, os.path.basename(move.final)))
        fsync_path(new_folder)
        # exchange needs both folders, and a new partition has none yet.
        os.makedirs(folder, exist_ok=True)
        exchange_folders(new_folder, folder)
        fsync_path(os.path.dirname(folder))
        shutil.rmtree(new_folder)
    shutil.rmtree(work, ignore_errors=True)


def replace_folder(log: FolderLog, moves: Sequence[FileMove]) -> None:
    """Replace all files of the log's folder by those of `moves`, in one step. Needs the lock."""
    work = os.path.join(log.side, "replacing")
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    for move in moves:
        final = os.path.join(work, move.final)
        os.makedirs(os.path.dirname(final), exist_ok=True)
        staged = os.path.join(log.side, move.staged)
        fsync_path(staged)
        os.replace(staged, final)
        fsync_path(os.path.dirname(final))
    # exchange needs both folders, and a new table has none yet.
    os.makedirs(log.path, exist_ok=True)
    exchange_folders(work, log.path)
    fsync_path(os.path.dirname(log.path))
    shutil.rmtree(work, ignore_errors=True)


def _folders(log: FolderLog) -> list[str]:
    """Return the folders that hold files; ConfigError for one that holds folders as well, which cannot be exchanged."""
    folders = []
    for folder, subfolders, names in os.walk(log.path):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith(("_", ".")))
        if not any(_is_data_file(name) for name in names):
            continue
        children = [name for name in os.listdir(folder) if os.path.isdir(os.path.join(folder, name))]
        if children:
            raise ConfigError(f"{folder} holds files and the folder {children[0]}: a folder of both is not compacted")
        folders.append(folder)
    return folders


def _is_data_file(name: str) -> bool:
    return name.endswith(_SUFFIX) and not name.startswith(("_", "."))


def _files(folder: str) -> tuple[list[str], list[int]]:
    names = sorted(name for name in os.listdir(folder) if _is_data_file(name))
    return names, [os.path.getsize(os.path.join(folder, name)) for name in names]


def _link_unmerged(old: str, new: str, merged: set[str]) -> bool:
    """Link the files that stay into the new folder; return False when merged files were replaced meanwhile."""
    names = os.listdir(old)
    if not merged <= set(names):
        return False
    for name in names:
        if name not in merged:
            # A link costs nothing, and both folders are complete at the moment of the exchange.
            os.link(os.path.join(old, name), os.path.join(new, name))
    fsync_path(new)
    return True


def _merge(paths: Sequence[str], target: str) -> None:
    """Write the rows of files to one file, a batch at a time; a column that a file lacks is null for its rows."""
    import pyarrow as pa  # type: ignore[import-untyped] # noqa: PLC0415 - an extra
    import pyarrow.dataset as ds  # type: ignore[import-untyped] # noqa: PLC0415
    import pyarrow.parquet as pq  # type: ignore[import-untyped] # noqa: PLC0415

    schema = pa.unify_schemas([pq.read_schema(path) for path in paths])
    rows = sum(pq.read_metadata(path).num_rows for path in paths)
    # Without partitioning: partition columns are in the folders' names, not in the files.
    dataset = ds.dataset(list(paths), schema=schema, format="parquet", partitioning=None)
    with pq.ParquetWriter(target, schema, compression="snappy") as writer:
        for batch in dataset.to_batches():
            if batch.num_rows:
                writer.write_batch(batch)
    merged_rows = pq.read_metadata(target).num_rows
    if merged_rows != rows:
        # Better no compaction than lost rows: the old folder is still in place.
        raise ConfigError(f"{len(paths)} files of {rows} rows became {merged_rows} rows; nothing was changed")
    fsync_path(target)
