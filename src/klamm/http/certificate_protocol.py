"""HTTP connections whose client has presented a certificate: the application finds it in the scope of each request."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from klamm.http.app import CERTIFICATE


class CertificateProtocol(HttpToolsProtocol):  # type: ignore[misc]  # an extra, whose types are not read
    """uvicorn's protocol, which reads the certificate once for a connection."""

    _certificate: bytes | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Read the certificate; the handshake is over."""
        super().connection_made(transport)
        tls: Any = transport.get_extra_info("ssl_object")
        self._certificate = tls.getpeercert(binary_form=True) if tls is not None else None

    def on_message_begin(self) -> None:
        """Add the certificate to the scope that the next request has."""
        super().on_message_begin()
        if self._certificate is not None:
            self.scope[CERTIFICATE] = self._certificate
