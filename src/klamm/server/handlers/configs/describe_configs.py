"""DescribeConfigs, v1-4: every setting of a topic, broker, group, ..., and where its value comes from.

A broker answers for itself only. Sensitive values are never returned. Synonyms come on request (v1), with types and
documentation from v3.
v4 flexible
"""

from collections.abc import Mapping
from operator import attrgetter

from klamm.model.acls import AclOperation
from klamm.model.config_describe import (
    DescribedConfig,
    describe_broker,
    describe_cluster_default,
    describe_group,
    describe_topic,
)
from klamm.model.config_resources import ConfigResource, ResourceType
from klamm.model.config_sources import ConfigSource, ConfigSynonym
from klamm.model.errors import ErrorCode, KlammError
from klamm.model.group_configs import CLIENT_METRICS_CONFIGS
from klamm.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from klamm.server.cluster.topics import name_complaint
from klamm.server.handlers.configs import broker_loggers
from klamm.server.requests.access.admin_requests import check_configs
from klamm.server.requests.access.refusals import DENIALS
from klamm.server.requests.context import RequestContext
from klamm.server.requests.slices import SliceSteps
from klamm.server.services import Services


def handle(
    services: Services, context: RequestContext, request: DescribeConfigsRequest
) -> SliceSteps[DescribeConfigsResponse]:
    """Describe each resource on its own; an error of one does not affect the others."""
    results = []
    # Once each: a broker has hundreds of configs, and a request could name it again for three bytes.
    resources = {(resource.resource_type, resource.resource_name): resource for resource in request.resources}
    for resource in resources.values():
        result = DescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=None
        )
        try:
            denial = check_configs(
                services, context, AclOperation.DESCRIBE_CONFIGS, resource.resource_type, resource.resource_name
            )
            if denial is not ErrorCode.NONE:
                raise KlammError(denial, DENIALS[denial])
            result.configs = [
                _build_entry(config, request)
                for config in _describe(services, resource)
                if not resource.configuration_keys or config.name in resource.configuration_keys
            ]
        # Per resource: tools describe many at once.
        except KlammError as error:
            result.error_code = error.code
            result.error_message = error.message
        results.append(result)
        yield 1 + len(result.configs)
    return DescribeConfigsResponse(results=results)


def _describe(services: Services, resource: DescribeConfigsResource) -> list[DescribedConfig]:
    image = services.image
    own, everyone = image.broker_configs(services.node_id), image.broker_configs(None)
    static = services.config.static
    name = resource.resource_name
    match resource.resource_type:
        case ResourceType.TOPIC:
            complaint = name_complaint(name)
            if complaint:
                raise KlammError(ErrorCode.INVALID_TOPIC_EXCEPTION, complaint)
            if name not in image.topics.by_name:
                raise KlammError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} does not exist")
            return describe_topic(image.topic_configs(name), own, everyone, static)
        case ResourceType.BROKER:
            # The empty name stands for the cluster-wide defaults of all brokers.
            if not name:
                return describe_cluster_default(everyone)
            # The static configs of another broker are in its file only; clients send this request to the broker itself.
            if name != str(services.node_id):
                raise KlammError(
                    ErrorCode.INVALID_REQUEST, f"broker {services.node_id} cannot describe the configs of broker {name}"
                )
            return describe_broker(own, everyone, static)
        case ResourceType.GROUP:
            if not name:
                raise KlammError(ErrorCode.INVALID_REQUEST, "a group id must not be empty")
            return describe_group(image.group_configs(name), own, everyone, static)
        case ResourceType.CLIENT_METRICS:
            if not name:
                raise KlammError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
            return _describe_client_metrics(image.configs.get(ConfigResource(ResourceType.CLIENT_METRICS, name), {}))
        case ResourceType.BROKER_LOGGER:
            broker_loggers.check_owner(name, services.node_id)
            return broker_loggers.describe()
        case _:
            raise KlammError(
                ErrorCode.INVALID_REQUEST, f"configs of resource type {resource.resource_type} are not served"
            )


def _describe_client_metrics(texts: Mapping[str, str]) -> list[DescribedConfig]:
    """Describe a subscription to client metrics; as in Kafka, a default has no synonyms."""
    described = []
    for key in sorted(CLIENT_METRICS_CONFIGS, key=attrgetter("name")):
        value = texts.get(key.name)
        source = ConfigSource.DEFAULT_CONFIG if value is None else ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG
        synonyms = () if value is None else (ConfigSynonym(key.name, value, source),)
        effective = key.default_text if value is None else value
        described.append(
            DescribedConfig(key.name, effective, source, synonyms, key.type, key.doc, read_only=False, sensitive=False)
        )
    return described


def _build_entry(config: DescribedConfig, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = [
        DescribeConfigsSynonym(
            name=synonym.name, value=None if config.sensitive else synonym.value, source=synonym.source
        )
        for synonym in config.synonyms
    ]
    return DescribeConfigsResourceResult(
        name=config.name,
        # As in Kafka, null stands for a sensitive value and for one that is not set.
        value=None if config.sensitive else config.value,
        read_only=config.read_only,
        config_source=config.source,
        is_sensitive=config.sensitive,
        synonyms=synonyms if request.include_synonyms else [],
        config_type=config.type,
        documentation=config.doc if request.include_documentation else None,
    )
