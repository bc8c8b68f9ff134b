"""Which names a topic may have."""

import re

NAME_LENGTH_MAX = 249
_ALLOWED = re.compile(r"[a-zA-Z0-9._-]+")

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Topics in which the cluster keeps its own records."""

CLUSTER_METADATA_TOPIC = "__cluster_metadata"


def name_complaint(name: str) -> str:
    """Why `name` is no topic name, or an empty text when it is one."""
    if not name:
        return "a topic name must not be empty"
    if name in (".", ".."):
        return f"{name!r} cannot be a topic name"
    if len(name) > NAME_LENGTH_MAX:
        return f"a topic name has at most {NAME_LENGTH_MAX} characters, {name[:20]!r}... has {len(name)}"
    if not _ALLOWED.fullmatch(name):
        return f"{name!r} is no topic name: use letters, digits, '.', '_' and '-'"
    return ""
