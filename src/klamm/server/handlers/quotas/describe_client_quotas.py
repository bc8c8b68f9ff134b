"""DescribeClientQuotas, v0-1: the quotas of the entities that all components of the request match.

Without components, all quotas; `strict` leaves out entities with further components.
v1 flexible
"""

from klamm.model.errors import KlammError
from klamm.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from klamm.security.core.quota_entities import EntityFilter
from klamm.server.requests.context import RequestContext
from klamm.server.requests.slices import SliceSteps, cut
from klamm.server.services import Services


def handle(
    services: Services, _context: RequestContext, request: DescribeClientQuotasRequest
) -> SliceSteps[DescribeClientQuotasResponse]:
    """Describe quotas from the committed metadata."""
    try:
        entity_filter = EntityFilter(
            ((component.entity_type, component.match_type, component.match) for component in request.components),
            strict=request.strict,
        )
    except KlammError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=str(error), entries=None)
    entries = []
    for quotas in cut(list(services.image.client_quotas.items())):
        entries += [
            EntryData(
                entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity.parts],
                values=[ValueData(key=key, value=value) for key, value in values.items()],
            )
            for entity, values in quotas
            if entity_filter.matches(entity.parts)
        ]
        yield len(quotas)
    return DescribeClientQuotasResponse(error_message=None, entries=entries)
