"""Unique names, so that tests can share one broker."""

import itertools
import os
import re
import uuid

_RUN = uuid.uuid4().hex[:8]
_COUNT = itertools.count(1)
_ODD = re.compile(r"[^A-Za-z0-9._-]+")


def unique(prefix: str = "test") -> str:
    """A name for a topic or a group that no other test, worker or run has."""
    # 249 characters at most, and the suffix; the pid tells the workers of pytest-xdist apart, which share a seed.
    clean = _ODD.sub("-", prefix).strip("-.")[:180] or "test"
    return f"{clean}-{_RUN}-{os.getpid():x}-{next(_COUNT)}"
