"""Changing configs of topics, brokers, groups and client metrics."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Protocol, TypeVar

from klamm.controller.context import ControllerContext, ControllerDecision, refuse
from klamm.model.broker_configs import is_store_setting
from klamm.model.config import MAX_SHORT, format_value
from klamm.model.config_resources import ConfigResource, ResourceType
from klamm.model.errors import ConfigError, ErrorCode, KlammError
from klamm.protocol.messages import alter_configs as ac
from klamm.protocol.messages import incremental_alter_configs as iac
from klamm.protocol.messages.metadata_records import ClearElrRecord, ConfigRecord, MetadataRecord


class ConfigOperation(IntEnum):
    """What IncrementalAlterConfigs does to one config."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def topic_creation_records(
    context: ControllerContext, topic: str, configs: Mapping[str, str | None]
) -> tuple[list[ConfigRecord], dict[str, str]]:
    """The config records of a topic that is about to exist, and the configs they set."""
    own = {name: value for name, value in configs.items() if value is not None}
    if len(own) != len(configs):
        missing = ",".join(name for name, value in configs.items() if value is None)
        raise KlammError(ErrorCode.INVALID_CONFIG, f"A topic config needs a value: {missing}")
    try:
        context.validator.validate_topic(own, context.broker_values())
    except ConfigError as error:
        raise KlammError(ErrorCode.INVALID_CONFIG, str(error)) from None
    resource = ConfigResource(ResourceType.TOPIC, topic)
    return [_record(resource, name, value) for name, value in own.items()], own


def incremental_alter_configs(
    context: ControllerContext, request: iac.IncrementalAlterConfigsRequest
) -> ControllerDecision[iac.IncrementalAlterConfigsResponse]:
    """Change single configs; the changes of a resource are made together or not at all."""
    response = iac.IncrementalAlterConfigsResponse()

    def change(entry: iac.AlterConfigsResource) -> list[MetadataRecord]:
        _check_names(config.name for config in entry.configs)
        resource = ConfigResource.from_wire(entry.resource_type, entry.resource_name)
        current = context.image.configs.get(resource, {})
        changed = {config.name: _changed_value(context, resource, config, current) for config in entry.configs}
        return _alter(context, resource, changed)

    records, results = _change_resources(request.resources, change)
    for entry, code, message in results:
        response.responses.append(
            iac.AlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=entry.resource_type,
                resource_name=entry.resource_name,
            )
        )
    return ControllerDecision(() if request.validate_only else tuple(records), response)


def alter_configs(
    context: ControllerContext, request: ac.AlterConfigsRequest
) -> ControllerDecision[ac.AlterConfigsResponse]:
    """Replace all configs of a resource; those that are not named return to their defaults."""
    response = ac.AlterConfigsResponse()

    def change(entry: ac.AlterConfigsResource) -> list[MetadataRecord]:
        _check_names(config.name for config in entry.configs)
        nulls = [config.name for config in entry.configs if config.value is None]
        if nulls:
            raise KlammError(ErrorCode.INVALID_REQUEST, f"These configs have no value: {','.join(nulls)}")
        # A broker checks its stores before it forwards a change of single ones.
        stores = [config.name for config in entry.configs if is_store_setting(config.name)]
        if stores:
            raise KlammError(ErrorCode.INVALID_REQUEST, f"{stores[0]} is changed with IncrementalAlterConfigs only")
        resource = ConfigResource.from_wire(entry.resource_type, entry.resource_name)
        # None removes a config; those in the request get a value below.
        changed: dict[str, str | None] = dict.fromkeys(context.image.configs.get(resource, {}))
        changed.update({config.name: config.value for config in entry.configs})
        return _alter(context, resource, changed)

    records, results = _change_resources(request.resources, change)
    for entry, code, message in results:
        response.responses.append(
            ac.AlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=entry.resource_type,
                resource_name=entry.resource_name,
            )
        )
    return ControllerDecision(() if request.validate_only else tuple(records), response)


class _RequestResource(Protocol):
    """The fields that the resources of both requests share."""

    resource_type: int
    resource_name: str


A = TypeVar("A", bound=_RequestResource)


def _change_resources(
    resources: Sequence[A], change: Callable[[A], list[MetadataRecord]]
) -> tuple[list[MetadataRecord], list[tuple[A, ErrorCode, str | None]]]:
    """Change resource by resource; an invalid one is not changed and does not affect the others."""
    times = Counter((entry.resource_type, entry.resource_name) for entry in resources)
    records: list[MetadataRecord] = []
    # By resource: one that is named twice gets one result, as in Kafka.
    results: dict[tuple[int, str], tuple[A, ErrorCode, str | None]] = {}
    for entry in resources:
        key = (entry.resource_type, entry.resource_name)
        try:
            if times[key] > 1:
                refuse(ErrorCode.INVALID_REQUEST, "A resource is named twice in the request; name it once.")
            records += change(entry)
        except KlammError as error:
            results[key] = (entry, error.code, str(error))
        else:
            results[key] = (entry, ErrorCode.NONE, None)
    return records, list(results.values())


def _check_names(names: Iterable[str]) -> None:
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        raise KlammError(ErrorCode.INVALID_REQUEST, f"These configs are named twice: {','.join(repeated)}")


def _changed_value(
    context: ControllerContext, resource: ConfigResource, config: iac.AlterableConfig, current: Mapping[str, str]
) -> str | None:
    """The value after an operation; None removes the config."""
    name = config.name
    if config.config_operation == ConfigOperation.DELETE:
        return None
    if config.value is None:
        raise KlammError(ErrorCode.INVALID_REQUEST, f"{name} has no value")
    if config.config_operation == ConfigOperation.SET:
        return config.value
    if config.config_operation not in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
        raise KlammError(ErrorCode.INVALID_REQUEST, f"Unknown operation type {config.config_operation} for {name}")
    operation = ConfigOperation(config.config_operation)
    of_topic = resource.type == ResourceType.TOPIC
    if not context.validator.is_list(name, of_topic=of_topic):
        message = f"{operation.name} works on lists, and {name} is not one; use SET."
        raise KlammError(ErrorCode.INVALID_CONFIG, message)
    value = current.get(name)
    if value is None:
        # APPEND and SUBTRACT start from the inherited list, as in Kafka.
        if of_topic:
            value = format_value(context.validator.inherited_by_topics(name, context.broker_values()))
        else:
            value = context.validator.static_of_broker(name)
    parts = [part for part in (value or "").split(",") if part]
    given = config.value.split(",")
    if operation is ConfigOperation.APPEND:
        parts += [part for part in dict.fromkeys(given) if part not in parts]
    else:
        parts = [part for part in parts if part not in given]
    return ",".join(parts)


def _alter(
    context: ControllerContext, resource: ConfigResource, changed: Mapping[str, str | None]
) -> list[MetadataRecord]:
    """The records for changed configs, after all configs of the resource were validated together."""
    current = context.image.configs.get(resource, {})
    merged = {name: value for name, value in {**current, **changed}.items() if value is not None}
    _check_resource(context, resource, merged, changed)
    _check_changes(context, resource, changed)
    # Written for brokers even if the value is the same: a file that it names, like a keystore, may have changed.
    always = resource.type == ResourceType.BROKER
    records: list[MetadataRecord] = [
        _record(resource, name, value) for name, value in changed.items() if always or current.get(name) != value
    ]
    if context.elr_enabled and _changes_min_isr(resource, current, changed):
        # The eligible leader replicas were determined by the old minimum and are no longer valid.
        records.append(ClearElrRecord(topic_name=resource.name if resource.type == ResourceType.TOPIC else ""))
    return records


def _changes_min_isr(resource: ConfigResource, current: Mapping[str, str], changed: Mapping[str, str | None]) -> bool:
    if resource.type not in (ResourceType.TOPIC, ResourceType.BROKER) or "min.insync.replicas" not in changed:
        return False
    return current.get("min.insync.replicas") != changed["min.insync.replicas"]


def _check_resource(
    context: ControllerContext, resource: ConfigResource, merged: Mapping[str, str], changed: Mapping[str, str | None]
) -> None:
    if resource.type == ResourceType.TOPIC:
        try:
            context.validator.validate_topic(merged, context.broker_values())
        except ConfigError as error:
            raise KlammError(ErrorCode.INVALID_CONFIG, str(error)) from None
        if resource.name not in context.image.topics.by_name:
            message = f"The topic '{resource.name}' does not exist."
            raise KlammError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    elif resource.type == ResourceType.BROKER:
        _check_broker(context, resource.name)
        try:
            given = {name: value for name, value in changed.items() if value is not None}
            context.validator.validate_broker(given, all_brokers=not resource.name)
        except ConfigError as error:
            raise KlammError(ErrorCode.INVALID_REQUEST, str(error)) from None
    elif resource.type in (ResourceType.GROUP, ResourceType.CLIENT_METRICS):
        if not resource.name:
            raise KlammError(ErrorCode.INVALID_REQUEST, "The default of all groups or client metrics cannot be set.")
        if resource.type == ResourceType.GROUP:
            try:
                context.validator.validate_group(merged)
            except ConfigError as error:
                raise KlammError(ErrorCode.INVALID_CONFIG, str(error)) from None
    else:
        raise KlammError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type {resource.type}")


def _check_changes(context: ControllerContext, resource: ConfigResource, changed: Mapping[str, str | None]) -> None:
    """Reject changes that Kafka rejects regardless of the other configs of the resource."""
    for name, value in changed.items():
        if value is not None and len(value.encode()) > MAX_SHORT:  # older DescribeConfigs cannot carry it
            message = f"The value of {name} exceeds the maximum value size of {MAX_SHORT} bytes."
            raise KlammError(ErrorCode.INVALID_CONFIG, message)
        if name != "min.insync.replicas" or resource.type != ResourceType.BROKER or not context.elr_enabled:
            continue
        if resource.name:
            message = "Broker-level min.insync.replicas cannot be altered while ELR is enabled."
            raise KlammError(ErrorCode.INVALID_CONFIG, message)
        if value is None:
            message = "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."
            raise KlammError(ErrorCode.INVALID_CONFIG, message)


def _check_broker(context: ControllerContext, name: str) -> None:
    if not name:
        return
    if not name.isascii() or not name.isdigit():
        raise KlammError(ErrorCode.INVALID_REQUEST, f"{name!r} is not a broker id")
    if int(name) not in context.image.cluster.brokers:
        raise KlammError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No broker with id {name} found.")


def _record(resource: ConfigResource, name: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(resource_type=resource.type, resource_name=resource.name, name=name, value=value)
