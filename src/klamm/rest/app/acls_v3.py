"""Routes of v3 about access rules."""

from __future__ import annotations

from klamm.http.messages import HttpResponse, json_response
from klamm.http.router import PathRouter
from klamm.rest.app.cluster_routes import CLUSTER, V3Routes, add_v3
from klamm.rest.app.requests import RestRequest
from klamm.rest.core.admin_requests import parse_rule, parse_rule_filter, parse_rules
from klamm.rest.core.fields import parse_object


class AclRoutes(V3Routes):
    """Access rules: find, add, delete."""

    def add_to(self, router: PathRouter) -> None:
        """Serve these routes."""
        add_v3(router, "GET", f"{CLUSTER}/acls", self.find)
        add_v3(router, "POST", f"{CLUSTER}/acls", self.create)
        add_v3(router, "POST", f"{CLUSTER}/acls:batch", self.create_several)
        add_v3(router, "DELETE", f"{CLUSTER}/acls", self.delete)

    async def find(self, request: RestRequest) -> HttpResponse:
        """GET .../acls?resource_type=...: the rules that match."""
        printer = self.printer(request)
        rules = await request.clients.admin.describe_acls(parse_rule_filter(request.query, for_deletion=False))
        resources = [printer.acl(rule) for rule in sorted(rules)]
        return json_response(printer.list_of("KafkaAcl", resources, "acls"))

    async def create(self, request: RestRequest) -> HttpResponse:
        """POST .../acls: one rule."""
        self.printer(request)
        await request.clients.admin.create_acls([parse_rule(parse_object(request.body))])
        return HttpResponse(201)

    async def create_several(self, request: RestRequest) -> HttpResponse:
        """POST .../acls:batch {"data": [...]}."""
        self.printer(request)
        await request.clients.admin.create_acls(parse_rules(parse_object(request.body)))
        return HttpResponse(201)

    async def delete(self, request: RestRequest) -> HttpResponse:
        """DELETE .../acls?resource_type=...&pattern_type=...&operation=...: returns what was deleted."""
        printer = self.printer(request)
        deleted = await request.clients.admin.delete_acls([parse_rule_filter(request.query, for_deletion=True)])
        return json_response({"data": [printer.acl(rule) for rule in sorted(deleted)]})
