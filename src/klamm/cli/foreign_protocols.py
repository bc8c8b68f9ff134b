"""Recognises a port that does not speak Kafka's protocol, by its first bytes or by how it closed the connection."""

from __future__ import annotations

import re
from typing import Final

import click

_FIRST_BYTES: Final = re.compile(r"the connection to (\S+) broke: a frame of (-?\d+) bytes")
"""The first four bytes were taken for the length of a response, which no broker sends."""
_HUNG_UP: Final = re.compile(
    r"(\S+?) (?:does not answer: Connection reset|closed the connection|broke: .*reset by peer)"
)
_NO_TLS: Final = re.compile(
    r"(\S+) and this client do not agree on TLS: .*(?:WRONG_VERSION|UNEXPECTED_EOF|record layer)"
)
_PROBE_S: Final = 2.0
_SECURITY_PROTOCOL: Final = "klamm.security_protocol"


def remember_protocol(protocol: str) -> None:
    """Keep the security.protocol of the running command, for what `not_kafka` proposes instead."""
    if (context := click.get_current_context(silent=True)) is not None:
        context.meta[_SECURITY_PROTOCOL] = protocol.upper()


def _security_protocol() -> str:
    """The security.protocol of the running command; empty where none is set."""
    context = click.get_current_context(silent=True)
    return "" if context is None else str(context.meta.get(_SECURITY_PROTOCOL, ""))


def not_kafka(message: str) -> str | None:
    """A sentence for an error of a connection that failed because something else listens; None where it did not."""
    if match := _FIRST_BYTES.search(message):
        # The length was read as a signed number; the four bytes on the wire are what identifies the protocol.
        return _by_first_bytes(match[1], (int(match[2]) & 0xFFFFFFFF).to_bytes(4, "big"))
    # The probe costs a round trip, so it is the last resort: a port may close for many reasons.
    if (match := _HUNG_UP.search(message)) and _speaks_tls(match[1]):
        return _tls(match[1])
    if match := _NO_TLS.search(message):
        change = (
            "write security.protocol=SASL_PLAINTEXT"
            if _security_protocol().startswith("SASL_")
            else "leave security.protocol=SSL out"
        )
        return f"{match[1]} does not speak TLS; {change}, or write the address of the TLS listener"
    return None


def _by_first_bytes(address: str, first: bytes) -> str | None:
    # A TLS record: alert (21) or handshake (22), then the major version 3 of every TLS.
    if first[0] in (0x15, 0x16) and first[1] == 3:
        return _tls(address)
    name = {b"HTTP": "HTTP, not Kafka's protocol", b"SSH-": "SSH, not Kafka's protocol"}.get(first)
    message = f"{address} does not speak Kafka's protocol" if name is None else f"{address} speaks {name}"
    return f"{message}; write the address of a broker"


def _tls(address: str) -> str | None:
    """A sentence for a port with TLS that proposes what is not set yet; None where TLS and a login are set."""
    match _security_protocol():
        case "SASL_SSL":
            return None
        case "SSL":
            # A listener with logins closes the connection at the first request that is not part of one.
            return (
                f"{address} closed the connection after the TLS handshake; if its clients log in, try"
                " -X security.protocol=SASL_SSL with sasl.mechanism, sasl.username and sasl.password"
            )
        case "SASL_PLAINTEXT":
            return f"{address} speaks TLS; try -X security.protocol=SASL_SSL"
        case _:
            return f"{address} speaks TLS; try -X security.protocol=SSL or, with a login, SASL_SSL"


def _speaks_tls(address: str) -> bool:
    """Whether a TLS handshake succeeds there: a TLS port may close the connection without an alert."""
    import socket
    import ssl

    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        return False
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # no data is sent to it
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_S) as raw,
            context.wrap_socket(raw),
        ):
            return True
    except ssl.SSLError as error:
        # A demand for a client certificate is still TLS; any other failure is a port that speaks something else.
        return "CERTIFICATE" in (error.reason or "")
    except OSError:
        return False
