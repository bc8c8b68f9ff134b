"""Feature levels: the protocol versions that all nodes of the cluster use (KIP-584)."""

from klamm.controller.context import (
    ELR_VERSION,
    KRAFT_VERSION,
    METADATA_VERSION,
    ControllerContext,
    ControllerDecision,
    refuse,
)
from klamm.metadata.image import FeatureRange
from klamm.model.config import format_value
from klamm.model.config_resources import ConfigResource, ResourceType
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages import update_features as uf
from klamm.protocol.messages.metadata_records import (
    ClearElrRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
)
from klamm.raft.core.quorum import KRAFT_VERSIONS

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
_DISABLED = FeatureRange(0, 0)
_KRAFT_VERSIONS = FeatureRange(*KRAFT_VERSIONS)


def bootstrap_records(context: ControllerContext) -> tuple[MetadataRecord, ...]:
    """The first records of a new cluster: its feature levels, metadata.version first."""
    levels = context.config.finalized_features
    if METADATA_VERSION not in levels:
        raise ValueError("a cluster cannot start without a metadata.version")
    others = sorted(name for name in levels if name != METADATA_VERSION)
    # A reader needs metadata.version before any record whose format depends on it.
    records: list[MetadataRecord] = [
        FeatureLevelRecord(name=name, feature_level=levels[name])
        for name in (METADATA_VERSION, *others)
        if levels[name]
    ]
    if levels.get(ELR_VERSION):
        records += _min_isr_for_all(context)
    return tuple(records)


def _min_isr_for_all(context: ControllerContext) -> list[MetadataRecord]:
    """The record of the min.insync.replicas in force: ELR needs one value for all brokers."""
    if "min.insync.replicas" in context.image.broker_configs(None):
        return []
    value = format_value(context.validator.inherited_by_topics("min.insync.replicas", ({}, {})))
    resource = ConfigResource(ResourceType.BROKER, "")
    return [
        ConfigRecord(resource_type=resource.type, resource_name=resource.name, name="min.insync.replicas", value=value)
    ]


def requested_kraft_version(request: uf.UpdateFeaturesRequest) -> int | None:
    """The kraft.version that a request sets, or None."""
    return next(
        (update.max_version_level for update in request.feature_updates if update.feature == KRAFT_VERSION), None
    )


def update_features(
    context: ControllerContext, request: uf.UpdateFeaturesRequest, version: int, kraft_version: int
) -> ControllerDecision[uf.UpdateFeaturesResponse]:
    """Raise or lower feature levels, all of them or none.

    `kraft_version` is the present level of the quorum. It is not in a metadata record: the quorum raises it itself,
    before the records of this decision are written.
    """
    records: list[MetadataRecord] = []
    try:
        names = [update.feature for update in request.feature_updates]
        if len(set(names)) != len(names):
            refuse(ErrorCode.INVALID_REQUEST, "A feature may be updated only once.")
        for update in request.feature_updates:
            records += _update(context, update, version, kraft_version)
    except KlammError as error:
        return ControllerDecision((), build_response(request, version, error))
    return ControllerDecision(() if request.validate_only else tuple(records), build_response(request, version))


def build_response(
    request: uf.UpdateFeaturesRequest, version: int, error: KlammError | None = None
) -> uf.UpdateFeaturesResponse:
    """The response after success, or after `error`, for which no feature was changed."""
    code, message = ErrorCode.NONE, None
    if error is not None:
        code, message = error.code, f"No feature was changed: {error}"
    response = uf.UpdateFeaturesResponse(error_code=code, error_message=message)
    # From v2 on the error of the request is the only one.
    if version <= 1:
        response.results = [
            uf.UpdatableFeatureResult(feature=update.feature, error_code=code, error_message=message)
            for update in request.feature_updates
        ]
    return response


def _update(
    context: ControllerContext, update: uf.FeatureUpdateKey, version: int, kraft_version: int
) -> list[MetadataRecord]:
    name, level = update.feature, update.max_version_level
    # v0 has a flag in place of the upgrade type.
    kind = update.upgrade_type if version >= 1 else (SAFE_DOWNGRADE if update.allow_downgrade else UPGRADE)
    current = kraft_version if name == KRAFT_VERSION else context.image.features.get(name, 0)
    problem = None
    if kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        problem = "The upgrade type is unknown."
    elif level < 0:
        problem = "Levels start at 0."
    elif (reason := _explain_unsupported(context, name, level)) is not None:
        problem = reason
    elif level < current and kind == UPGRADE:
        problem = "A downgrade needs the upgrade type safe or unsafe downgrade."
    elif level > current and kind != UPGRADE:
        problem = "A downgrade cannot lead to a newer version."
    elif name == METADATA_VERSION and level < current:
        problem = (
            "metadata.version cannot be downgraded: the log already holds records that older versions cannot read."
        )
    elif name == KRAFT_VERSION and level < current:
        problem = "kraft.version cannot be downgraded: the voters are part of the log."
    if problem is not None:
        message = f"Invalid update version {level} for feature {name}. {problem}"
        raise KlammError(ErrorCode.INVALID_UPDATE_VERSION, message)
    if name == KRAFT_VERSION:
        return [NoOpRecord()]  # brokers that have applied it have also read the control record before it
    if level == current:
        return []
    records: list[MetadataRecord] = [FeatureLevelRecord(name=name, feature_level=level)]
    if name == ELR_VERSION:
        records += _min_isr_for_all(context) if level else [ClearElrRecord(topic_name="")]
    return records


def _explain_unsupported(context: ControllerContext, name: str, level: int) -> str | None:
    """Why a node does not support the feature at this level; None when all do."""
    own = _KRAFT_VERSIONS if name == KRAFT_VERSION else context.config.supported_features.get(name, _DISABLED)
    spans = [("The controller", own)]
    brokers = context.image.cluster.brokers.values()
    spans += [(f"Broker {broker.id}", broker.features.get(name, _DISABLED)) for broker in brokers]
    for controller in context.image.cluster.controllers.values():
        ranges = {
            feature.name: FeatureRange(feature.min_supported_version, feature.max_supported_version)
            for feature in controller.features
        }
        spans.append((f"Controller {controller.controller_id}", ranges.get(name, _DISABLED)))
    for node, span in spans:
        if span == _DISABLED and level:
            return f"{node} does not support the feature."
        if not span.min_level <= level <= span.max_level:
            return f"{node} only supports versions {span.min_level}-{span.max_level}"
    return None
