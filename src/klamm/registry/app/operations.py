"""Routes for operators under Karapace's names."""

from __future__ import annotations

from klamm.http.messages import HttpResponse, json_response
from klamm.http.router import PathRouter
from klamm.registry.app.requests import RegistryRequest
from klamm.registry.service import RegistryService


class KarapaceRoutes:
    """What probes of Karapace call."""

    def __init__(self, service: RegistryService) -> None:
        self._service = service

    def add_to(self, router: PathRouter) -> None:
        """Serve these routes."""
        router.add("GET", "/_health", self.get_health, public=True, quiet=True)
        router.add("GET", "/master_available", self.get_leader, public=True, quiet=True)

    async def get_health(self, _: RegistryRequest) -> HttpResponse:
        """GET /_health: 503 until the topic is replayed and a leader is known."""
        ready, more = self._service.describe_readiness()
        return json_response({"status": "ready" if ready else "not ready"} | more, 200 if ready else 503)

    async def get_leader(self, _: RegistryRequest) -> HttpResponse:
        """GET /master_available: whether changes can be made."""
        return json_response({"master_available": self._service.leader is not None})
