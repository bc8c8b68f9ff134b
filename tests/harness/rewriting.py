"""Workers share the rewriting of asserts, which is most of the time that collecting the tests takes.

Every worker collects every test, all in the same order: each would rewrite all files at the same time as the others.
"""

from pathlib import Path

import pytest
from _pytest.assertion import rewrite


def share_rewriting(config: pytest.Config, files: list[Path], worker: int, workers: int) -> None:
    """Rewrite one part of the files, then what the other workers have not rewritten yet; imports read the results."""
    own = files[worker::workers]
    # From the end: the others begin at the start of their parts, and a file should be rewritten once.
    others = [path for path in reversed(files) if path not in set(own)]
    state = config.stash[rewrite.assertstate_key]
    for path in own + others:
        folder = rewrite.get_cache_dir(path)
        cached = folder / (path.name.removesuffix(".py") + rewrite.PYC_TAIL)
        if rewrite._read_pyc(path, cached) is None and rewrite.try_makedirs(folder):
            source_hash, code = rewrite._rewrite_test(path, config)
            rewrite._write_pyc(state, code, source_hash, cached)
