"""Client quotas: what AlterClientQuotas changes (KIP-546)."""

from klamm.controller.context import ControllerContext, ControllerDecision
from klamm.metadata.image import ClientQuotaEntity
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages import alter_client_quotas as acq
from klamm.protocol.messages.metadata_records import ClientQuotaRecord, EntityData, MetadataRecord
from klamm.security.core.quota_entities import EntityParts, check_limit, read_entity

RECORDS_MAX = 10_000
"""Kafka's limit of the records that one request may write."""


def alter_client_quotas(
    context: ControllerContext, request: acq.AlterClientQuotasRequest
) -> ControllerDecision[acq.AlterClientQuotasResponse]:
    """Set and remove quotas; each entity has a result of its own, and is changed whole or not at all."""
    records: list[MetadataRecord] = []
    results = []
    for entry in request.entries:
        result = acq.EntryDataResponse(error_message=None, entity=entry.entity)
        try:
            records += _decide(context, entry)
        except KlammError as error:
            result.error_code, result.error_message = error.code, str(error)
        results.append(result)
    if len(records) > RECORDS_MAX:
        raise KlammError(ErrorCode.POLICY_VIOLATION, f"One request may change {RECORDS_MAX} quotas at most; split it.")
    response = acq.AlterClientQuotasResponse(entries=results)
    return ControllerDecision(() if request.validate_only else tuple(records), response)


def _decide(context: ControllerContext, entry: acq.EntryData) -> list[MetadataRecord]:
    entity = read_entity((part.entity_type, part.entity_name) for part in entry.entity)
    current = context.image.client_quotas.get(ClientQuotaEntity(entity), {})
    records: list[MetadataRecord] = []
    for op in entry.ops:
        if op.remove:
            # A quota that is not there is removed without a record, as in Kafka.
            if op.key in current:
                records.append(ClientQuotaRecord(entity=_record_parts(entity), key=op.key, remove=True))
            continue
        check_limit(entity, op.key, op.value)
        if current.get(op.key) != op.value:
            records.append(ClientQuotaRecord(entity=_record_parts(entity), key=op.key, value=op.value))
    return records


def _record_parts(entity: EntityParts) -> list[EntityData]:
    return [EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
