"""Names for where a request goes: the purpose of a connection, the kind of a coordinator."""

from typing import Final

DATA: Final = "data"
GROUP: Final = "group"
ADMIN: Final = "admin"
"""Purposes of a connection: a long poll on one must not delay a heartbeat on another."""

GROUP_COORDINATOR: Final = 0
TRANSACTION_COORDINATOR: Final = 1
"""Key types of FindCoordinator."""
