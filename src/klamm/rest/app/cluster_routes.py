"""What the routes of v3 have in common: two prefixes, one cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from klamm.http.messages import HttpResponse
from klamm.http.router import PathRouter
from klamm.rest.app.addresses import PREFIXES, RequestAddress
from klamm.rest.app.requests import RestRequest
from klamm.rest.core.refusals import not_found
from klamm.rest.core.resources import ResourcePrinter
from klamm.rest.openapi import V3
from klamm.rest.service import RestService

CLUSTER: Final = "/clusters/{cluster_id}"

CLUSTER_ENDPOINT = Callable[[RestRequest], Awaitable[HttpResponse]]


def add_v3(router: PathRouter, method: str, pattern: str, endpoint: CLUSTER_ENDPOINT, *, streams: bool = False) -> None:
    """Serve a pattern below both prefixes."""
    for prefix in PREFIXES:
        router.add(method, prefix + pattern, endpoint, streams=streams, tag=V3)


class V3Routes:
    """Routes below one cluster."""

    def __init__(self, service: RestService, address: RequestAddress) -> None:
        self._service = service
        self._address = address

    def printer(self, request: RestRequest) -> ResourcePrinter:
        """Return the printer of answers; 404 for another cluster than the one behind the proxy."""
        check_cluster(self._service, request)
        return self._address.printer(request, self._service.cluster_id)


def check_cluster(service: RestService, request: RestRequest) -> None:
    """Refuse a path that names another cluster."""
    name = request.values.get("cluster_id")
    if name is not None and name != service.cluster_id:
        raise not_found(f"Cluster {name} cannot be found.")
