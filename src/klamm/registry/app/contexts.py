"""Routes of contexts, and of the registry as a whole: its clusters and version."""

from __future__ import annotations

from functools import partial

import klamm
from klamm.http.messages import HttpResponse, json_response
from klamm.http.router import PathRouter
from klamm.registry.app.access import RequestAccess
from klamm.registry.app.changes import Changes
from klamm.registry.app.requests import RegistryRequest
from klamm.registry.rights import SubjectOperation
from klamm.registry.service import RegistryService
from klamm.registry.store.deletion import decide_delete_context
from klamm.registry.store.lookup import cut_page
from klamm.registry.store.subjects import Subject, parse_context


class ContextRoutes:
    """Contexts and metadata of the registry."""

    def __init__(self, service: RegistryService, changes: Changes, access: RequestAccess) -> None:
        self._access = access
        self._service = service
        self._changes = changes

    def add_to(self, router: PathRouter) -> None:
        """Serve these routes."""
        router.add("GET", "/", self.get_root)
        router.add("GET", "/contexts", self.list_contexts)
        router.add("DELETE", "/contexts/{context}", self.delete_context)
        router.add("GET", "/v1/metadata/id", self.get_cluster)
        router.add("GET", "/v1/metadata/version", self.get_software)
        router.add("GET", "/v1/metadata/deployment", self.get_deployment)

    async def get_root(self, _: RegistryRequest) -> HttpResponse:
        """GET /: clients use it to see whether a registry answers."""
        return json_response({})

    async def list_contexts(self, request: RegistryRequest) -> HttpResponse:
        """GET /contexts."""
        prefix = request.text("contextPrefix")
        names = [name for name in self._service.state.context_names() if name.startswith(prefix)]
        return json_response(cut_page(names, *request.page()))

    async def delete_context(self, request: RegistryRequest) -> HttpResponse:
        """DELETE /contexts/{context}."""
        context = parse_context(request.values["context"])
        self._access.require(request, SubjectOperation.DELETE, Subject(context, ""))
        await self._changes.perform(request, partial(decide_delete_context, self._service.state, context))
        return HttpResponse(204)

    async def get_cluster(self, _: RegistryRequest) -> HttpResponse:
        """GET /v1/metadata/id."""
        clusters = {
            "kafka-cluster": self._service.log.cluster_id,
            "schema-registry-cluster": self._service.config.group_id,
        }
        return json_response({"scope": {"path": [], "clusters": clusters}, "id": ""})

    async def get_software(self, _: RegistryRequest) -> HttpResponse:
        """GET /v1/metadata/version."""
        return json_response({"version": klamm.__version__, "commitId": ""})

    async def get_deployment(self, _: RegistryRequest) -> HttpResponse:
        """GET /v1/metadata/deployment."""
        return json_response({"attributes": []})
