"""The rules for topic names."""

import re

# A partition's directory is named topic-partition, and file names have at most 255 bytes; Kafka leaves 6 for "-" and
# five digits.
NAME_LENGTH_MAX = 249
_ALLOWED = re.compile(r"[a-zA-Z0-9._-]+")

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Topics of the coordinators."""

CLUSTER_METADATA_TOPIC = "__cluster_metadata"


def name_complaint(name: str) -> str:
    """Why `name` is no topic name, or an empty text when it is one."""
    if not name:
        return "a topic name must not be empty"
    if name in (".", ".."):  # the name becomes part of a path
        return f"{name!r} cannot be a topic name"
    if len(name) > NAME_LENGTH_MAX:
        return f"a topic name has at most {NAME_LENGTH_MAX} characters, {name[:20]!r}... has {len(name)}"
    if not _ALLOWED.fullmatch(name):
        return f"{name!r} is no topic name: use letters, digits, '.', '_' and '-'"
    return ""
