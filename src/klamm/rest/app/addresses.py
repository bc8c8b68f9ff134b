"""The address that a request came to, for links in answers."""

from __future__ import annotations

import re
from typing import Final

from klamm.http.messages import HttpRequest
from klamm.rest.core.resources import ResourcePrinter

_HOST: Final = re.compile(r"[A-Za-z0-9._\[\]:-]{1,300}")
PREFIXES: Final = ("/v3", "/kafka/v3")
"""Where v3 is served: by Kafka REST as a process of its own, and inside a broker."""


class RequestAddress:
    """The advertised address, or the one that the client used."""

    def __init__(self, advertised_url: str | None, scheme: str) -> None:
        self._advertised_url = advertised_url.rstrip("/") if advertised_url else None
        self._scheme = scheme

    def root(self, request: HttpRequest) -> str:
        """Return scheme and host."""
        if self._advertised_url is not None:
            return self._advertised_url
        host = request.headers.get("host", "")
        # What a client sends as Host comes back to it in links: only what an address can be made of.
        return f"{self._scheme}://{host}" if _HOST.fullmatch(host) else ""

    def printer(self, request: HttpRequest, cluster_id: str) -> ResourcePrinter:
        """Return a printer of v3 objects whose links lead below the prefix of the request."""
        prefix = PREFIXES[1] if request.target.startswith(PREFIXES[1]) else PREFIXES[0]
        return ResourcePrinter(self.root(request) + prefix, cluster_id)
