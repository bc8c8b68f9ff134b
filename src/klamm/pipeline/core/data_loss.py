"""The error of records that are gone before they were read."""

from __future__ import annotations

from klamm.model.errors import ErrorCode, KlammError


class DataLoss(KlammError):
    """Raised when records that a range covers are not in the log any more."""

    def __init__(self, message: str) -> None:
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE, f"{message}; with failOnDataLoss=false the query goes on without them"
        )
