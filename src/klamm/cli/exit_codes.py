"""The exit codes of every klamm command: scripts may rely on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from klamm.model.errors import ErrorCode

OK: Final = 0
REFUSED: Final = 1
"""The cluster or a file refused the operation, or a check failed."""
# click's own exit code for a wrong command line.
USAGE: Final = 2
"""The command line itself cannot be understood."""
NOT_FOUND: Final = 3
"""There is no such topic, group, transactional id, context."""
DENIED: Final = 4
"""Authentication or authorization failed."""
NO_ANSWER: Final = 5
"""No broker answers, or not in time."""
NOT_AGREED: Final = 6
"""Nothing was changed: the change was not confirmed."""
# 128 + signal number, the shell's convention.
INTERRUPTED: Final = 130
"""Ctrl-C, where something was left undone by it."""
TERMINATED: Final = 143
"""SIGTERM, likewise."""

MEANINGS: Final = {
    OK: "done",
    REFUSED: "refused, or something is wrong; standard error has one sentence about it",
    USAGE: "the command line cannot be understood",
    NOT_FOUND: "no such topic, group, transactional id or context",
    DENIED: "not allowed: authentication or authorization failed",
    NO_ANSWER: "no broker answers, or not in time",
    NOT_AGREED: "nothing was changed, because the change was not confirmed",
    INTERRUPTED: "interrupted before it was done",
    TERMINATED: "ended by SIGTERM before it was done",
}

_NOT_FOUND = frozenset(
    {
        "UNKNOWN_TOPIC_OR_PARTITION",
        "UNKNOWN_TOPIC_ID",
        "GROUP_ID_NOT_FOUND",
        "TRANSACTIONAL_ID_NOT_FOUND",
        "RESOURCE_NOT_FOUND",
        "DELEGATION_TOKEN_NOT_FOUND",
        "BROKER_ID_NOT_REGISTERED",
        "LOG_DIR_NOT_FOUND",
    }
)
_NO_ANSWER = frozenset(
    {
        "REQUEST_TIMED_OUT",
        "NETWORK_EXCEPTION",
        "BROKER_NOT_AVAILABLE",
        "LEADER_NOT_AVAILABLE",
        "COORDINATOR_NOT_AVAILABLE",
        "COORDINATOR_LOAD_IN_PROGRESS",
    }
)


def exit_code(code: ErrorCode) -> int:
    """The exit code that stands for an error of the cluster."""
    if code.name in _NOT_FOUND:
        return NOT_FOUND
    # By suffix: topics, groups, clusters, transactional ids and tokens have a code each.
    if code.name.endswith(("_AUTHORIZATION_FAILED", "_AUTHENTICATION_FAILED")):
        return DENIED
    if code.name in _NO_ANSWER:
        return NO_ANSWER
    return REFUSED
