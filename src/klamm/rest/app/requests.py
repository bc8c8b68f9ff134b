"""Requests of the REST proxy: with the clients of the identity that they act as."""

from __future__ import annotations

from dataclasses import dataclass

from klamm.http.messages import HttpRequest
from klamm.rest.clients import RestClients


@dataclass(slots=True)
class RestRequest(HttpRequest):
    """A request to the proxy."""

    _clients: RestClients | None = None

    @property
    def clients(self) -> RestClients:
        """The clients of the caller, or the proxy's own."""
        assert self._clients is not None, "a public route has no clients"
        return self._clients

    def act_with(self, clients: RestClients) -> None:
        """Choose the clients."""
        self._clients = clients
