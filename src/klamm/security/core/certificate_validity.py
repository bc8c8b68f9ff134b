"""When a certificate is valid, in words for the log; the time is an argument."""

from datetime import UTC, datetime, timedelta
from typing import Final

from klamm.security.core.distinguished_name import subject_name, validity

WARNING_DAYS: Final = 30
"""A certificate that ends sooner is warned of."""


def describe_invalid(certificate: bytes, now_ms: int) -> str | None:
    """Say why clients would refuse a certificate at this time; None if it is valid."""
    begin, end = validity(certificate)
    now = _read_now(now_ms)
    if now > end:
        return f"certificate {subject_name(certificate)} expired at {_format(end)}"
    if now < begin:
        return f"certificate {subject_name(certificate)} is not valid before {_format(begin)}"
    return None


def describe_validity(certificate: bytes, now_ms: int) -> str | None:
    """As `describe_invalid`, and of a valid certificate that it expires soon."""
    end = validity(certificate)[1]
    left = end - _read_now(now_ms)
    # Already invalid comes first: of an expired certificate the days left would be negative.
    if (reason := describe_invalid(certificate, now_ms)) is not None or left > timedelta(days=WARNING_DAYS):
        return reason
    return f"certificate {subject_name(certificate)} expires in {left.days} days, at {_format(end)}; renew it"


def valid_from_ms(certificate: bytes) -> int:
    """Return the first moment at which a certificate is valid."""
    return int(validity(certificate)[0].timestamp() * 1000)


def _read_now(now_ms: int) -> datetime:
    return datetime.fromtimestamp(now_ms / 1000, UTC)


def _format(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
