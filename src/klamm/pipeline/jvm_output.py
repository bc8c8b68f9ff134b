"""Keeps what Spark's JVM and its Python processes print in a file: start lines, warnings, tracebacks of workers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from klamm.model.errors import ConfigError

_TAIL_BYTES: Final = 2000


@contextmanager
def jvm_output_to(path: str) -> Iterator[None]:
    """Let processes that start in the block write their standard error to a file, for as long as they run.

    ConfigError with the end of the file when the block fails because the JVM did not start.
    """
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415 - pyspark is an extra

    os.makedirs(os.path.dirname(path), exist_ok=True)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    own = os.dup(2)
    # Child processes inherit the descriptor, whatever sys.stderr is.
    os.dup2(log, 2)
    try:
        yield
    except PySparkRuntimeError as error:
        with open(path, "rb") as file:
            lines = file.read()[-_TAIL_BYTES:].decode(errors="replace").strip()
        raise ConfigError(f"Spark did not start: {error}\n{lines}") from None
    finally:
        os.dup2(own, 2)
        os.close(own)
        os.close(log)
