"""The operations a principal may perform, as responses pack them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from klamm.model.acls import AclOperation

NOT_REQUESTED = -(2**31)


def operations(bits: int) -> frozenset[AclOperation] | None:
    """Authorized operations from their bits; None when they were not requested."""
    if bits == NOT_REQUESTED:
        return None
    from klamm.model.acls import AclOperation  # noqa: PLC0415 - few responses have any

    return frozenset(operation for operation in AclOperation if operation > 2 and bits & (1 << operation))
