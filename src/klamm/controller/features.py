"""Feature levels: which protocols the whole cluster has agreed to speak."""

from klamm.controller.context import ELR_VERSION, KRAFT_VERSION, METADATA_VERSION, Context, Decision, refuse
from klamm.metadata.image import ConfigResource, FeatureRange, ResourceType
from klamm.model.config import format_value
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


def bootstrap_records(context: Context) -> tuple[MetadataRecord, ...]:
    """What a fresh cluster starts with: its feature levels, metadata.version first."""
    levels = context.config.finalized_features
    if METADATA_VERSION not in levels:
        raise ValueError("a cluster cannot start without a metadata.version")
    ordered = sorted(levels, key=lambda name: (name != METADATA_VERSION, name))
    records: list[MetadataRecord] = [FeatureLevelRecord(name=n, feature_level=levels[n]) for n in ordered if levels[n]]
    if levels.get(ELR_VERSION):
        records += _min_isr_for_all(context)
    return tuple(records)


def _min_isr_for_all(context: Context) -> list[MetadataRecord]:
    """Eligible leader replicas need one min.insync.replicas for all brokers: write down the one in force."""
    if "min.insync.replicas" in context.image.broker_configs(None):
        return []
    value = format_value(context.validator.inherited_by_topics("min.insync.replicas", ({}, {})))
    resource = ConfigResource(ResourceType.BROKER, "")
    return [
        ConfigRecord(resource_type=resource.type, resource_name=resource.name, name="min.insync.replicas", value=value)
    ]


def kraft_version_asked(request: uf.UpdateFeaturesRequest) -> int | None:
    """The level of the quorum's own feature that a request asks for; None when it is about others only."""
    return next((each.max_version_level for each in request.feature_updates if each.feature == KRAFT_VERSION), None)


def update_features(
    context: Context, request: uf.UpdateFeaturesRequest, version: int, kraft_version: int
) -> Decision[uf.UpdateFeaturesResponse]:
    """Raise or lower feature levels, all of them or none.

    `kraft_version` is the quorum's level now, which no metadata record tells: the quorum raises it itself, before the
    records of this decision are written.
    """
    records: list[MetadataRecord] = []
    try:
        names = [update.feature for update in request.feature_updates]
        if len(set(names)) != len(names):
            refuse(ErrorCode.INVALID_REQUEST, "A feature may be updated only once.")
        for update in request.feature_updates:
            records += _update(context, update, version, kraft_version)
    except KlammError as error:
        return Decision((), answer(request, version, error))
    return Decision(() if request.validate_only else tuple(records), answer(request, version))


def answer(
    request: uf.UpdateFeaturesRequest, version: int, error: KlammError | None = None
) -> uf.UpdateFeaturesResponse:
    """That everything was done, or that nothing was because of `error`."""
    code, message = ErrorCode.NONE, None
    if error is not None:
        code, message = error.code, f"No feature was changed: {error}"
    response = uf.UpdateFeaturesResponse(error_code=code, error_message=message)
    if version <= 1:
        response.results = [
            uf.UpdatableFeatureResult(feature=update.feature, error_code=code, error_message=message)
            for update in request.feature_updates
        ]
    return response


def _update(context: Context, update: uf.FeatureUpdateKey, version: int, kraft_version: int) -> list[MetadataRecord]:
    name, level = update.feature, update.max_version_level
    kind = update.upgrade_type if version >= 1 else (SAFE_DOWNGRADE if update.allow_downgrade else UPGRADE)
    current = kraft_version if name == KRAFT_VERSION else context.image.features.get(name, 0)
    complaint = None
    if kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        complaint = "The upgrade type is none that exists."
    elif level < 0:
        complaint = "Levels begin at 0."
    elif (reason := _unsupported(context, name, level)) is not None:
        complaint = reason
    elif level < current and kind == UPGRADE:
        complaint = "A downgrade needs the upgrade type safe or unsafe downgrade."
    elif level > current and kind != UPGRADE:
        complaint = "A downgrade cannot lead to a newer version."
    elif name == METADATA_VERSION and level < current:
        complaint = (
            "metadata.version cannot be downgraded: the log already holds records that older versions cannot read."
        )
    elif name == KRAFT_VERSION and level < current:
        complaint = "kraft.version cannot be downgraded: the log already names the voters."
    if complaint is not None:
        message = f"Invalid update version {level} for feature {name}. {complaint}"
        raise KlammError(ErrorCode.INVALID_UPDATE_VERSION, message)
    if name == KRAFT_VERSION:
        return [NoOpRecord()]  # brokers that have read it have also read what the quorum wrote before it
    if level == current:
        return []
    records: list[MetadataRecord] = [FeatureLevelRecord(name=name, feature_level=level)]
    if name == ELR_VERSION:
        records += _min_isr_for_all(context) if level else [ClearElrRecord(topic_name="")]
    return records


def _unsupported(context: Context, name: str, level: int) -> str | None:
    """Why some node could not run the feature at this level; None when all can."""
    own = _KRAFT_VERSIONS if name == KRAFT_VERSION else context.config.supported_features.get(name, _DISABLED)
    spans = [("The controller", own)]
    brokers = context.image.cluster.brokers.values()
    spans += [(f"Broker {broker.id}", broker.features.get(name, _DISABLED)) for broker in brokers]
    for controller in context.image.cluster.controllers.values():
        found = [f for f in controller.features if f.name == name]
        span = FeatureRange(found[0].min_supported_version, found[0].max_supported_version) if found else _DISABLED
        spans.append((f"Controller {controller.controller_id}", span))
    for who, span in spans:
        if span == _DISABLED and level:
            return f"{who} does not know the feature."
        if not span.min_level <= level <= span.max_level:
            return f"{who} only supports versions {span.min_level}-{span.max_level}"
    return None
