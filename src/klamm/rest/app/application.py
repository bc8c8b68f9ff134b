"""The ASGI application of a REST proxy: which media types an interface has, and what errors of the cluster mean."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Final

from klamm.client.errors import KafkaError
from klamm.http.app import HttpApp, HttpLogin
from klamm.http.media_types import check_content_type, choose_content_type
from klamm.http.messages import JSON, HttpRequest, HttpResponse
from klamm.http.operations import OperationRoutes
from klamm.http.refusals import HttpRefusal
from klamm.http.router import HttpRoute
from klamm.model.errors import ConfigError
from klamm.rest.app.acls_v3 import AclRoutes
from klamm.rest.app.addresses import RequestAddress
from klamm.rest.app.clusters_v3 import ClusterRoutes
from klamm.rest.app.configs_v3 import ConfigRoutes
from klamm.rest.app.consumers_v2 import ConsumerRoutes
from klamm.rest.app.groups_v3 import GroupRoutes
from klamm.rest.app.partitions_v3 import PartitionRoutes
from klamm.rest.app.records_v3 import RecordRoutes
from klamm.rest.app.requests import RestRequest
from klamm.rest.app.topics_v2 import TopicRoutesV2
from klamm.rest.app.topics_v3 import TopicRoutesV3
from klamm.rest.core.media_types import ANSWERED_RECORDS, TAKEN_V2
from klamm.rest.core.refusals import invalid_consumer_config, refusal_of
from klamm.rest.openapi import V2, describe
from klamm.rest.service import RestService

_V3_TAKEN: Final = (JSON, "application/octet-stream")
_V3_GIVEN: Final = (JSON,)


class RestApp(HttpApp):
    """v2, v3, the description of both, health and metrics."""

    request_class: ClassVar[type[HttpRequest]] = RestRequest
    timeout_code: ClassVar[int] = 50302
    failure_code: ClassVar[int] = 50002

    def __init__(self, service: RestService, *, login: HttpLogin | None = None, scheme: str = "http") -> None:
        super().__init__("rest", login=service.callers or login, body_bytes_max=service.config.body_bytes_max)
        self._service = service
        address = RequestAddress(service.config.advertised_url, scheme)
        for routes in (
            TopicRoutesV2(),
            ConsumerRoutes(service, address),
            ClusterRoutes(service, address),
            TopicRoutesV3(service, address),
            PartitionRoutes(service, address),
            ConfigRoutes(service, address),
            GroupRoutes(service, address),
            AclRoutes(service, address),
            RecordRoutes(service),
        ):
            routes.add_to(self.router)
        operations = OperationRoutes(service, self.metrics)
        operations.add_to(self.router)
        # Where probes of Karapace's proxy look.
        self.router.add("GET", "/_health", operations.get_readiness, public=True, quiet=True)
        self.router.add("GET", "/openapi.json", self.get_description, public=True)
        self._description = describe(self.router.routes())

    def choose_content_type(self, headers: Mapping[str, str], route: HttpRoute) -> str:
        """Return the media type of answers, by interface."""
        if route.quiet:
            return JSON
        return choose_content_type(headers, ANSWERED_RECORDS if route.tag is V2 else _V3_GIVEN)

    def check_content_type(self, headers: Mapping[str, str], route: HttpRoute) -> None:
        """Refuse a body by its media type, by interface."""
        check_content_type(headers, TAKEN_V2 if route.tag is V2 else _V3_TAKEN)

    async def authorize(self, request: HttpRequest, route: HttpRoute) -> None:
        """Choose the clients: those of the caller, for whom the cluster decides, or the proxy's own."""
        assert isinstance(request, RestRequest)
        callers = self._service.callers
        if callers is None:
            request.act_with(self._service.own)
        elif not route.public:
            caller = await callers.acquire(request.headers, request.peer)
            request.when_answered.append(partial(callers.release, caller))
            request.act_with(caller.clients)

    def explain(self, error: Exception) -> HttpRefusal | None:
        """Return the answer for an error of the cluster."""
        if isinstance(error, KafkaError):
            return refusal_of(error)
        if isinstance(error, ConfigError):
            return invalid_consumer_config(str(error))
        return None

    async def get_description(self, _: HttpRequest) -> HttpResponse:
        """GET /openapi.json."""
        return HttpResponse(body=self._description, content_type=JSON)
