"""The lake: a folder of Parquet files that the pipeline's sink writes, read with pyarrow."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq


class Lake:
    """What is in the lake; a file is read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rows: dict[str, int] = {}

    def refresh(self) -> None:
        """Count the rows of new files."""
        if not self.folder.is_dir():
            return
        for file in ds.dataset(self.folder, format="parquet").files:
            if file not in self._rows:
                self._rows[file] = pq.read_metadata(file).num_rows

    @property
    def files(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> int:
        return sum(list(self._rows.values()))

    def ids(self) -> Counter[int]:
        """The ids of all rows, each as often as it is there."""
        dataset = ds.dataset(self.folder, format="parquet") if self.folder.is_dir() else None
        if dataset is None or not dataset.files:
            return Counter()
        return Counter(dataset.to_table(columns=["id"])["id"].to_pylist())
