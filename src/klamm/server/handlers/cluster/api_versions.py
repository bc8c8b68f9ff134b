"""ApiVersions, v0-4: the APIs and features of this listener, the first request of most connections.

Made from the routes, so it lists exactly what is served. Versions before 4 leave out features that may be off
(minimum level 0), which older clients cannot read; a feature at level 0 is never listed as finalized.
v3 flexible (the response header stays v0), features and the client's software · v4 features from level 0
"""

import re
from typing import Any

from klamm.metadata.image import FeatureRange
from klamm.model.errors import ErrorCode
from klamm.protocol.codec import encode_into
from klamm.protocol.messages.api_versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from klamm.raft.core.voter_history import DYNAMIC
from klamm.server.requests.context import ANSWERED, RequestContext
from klamm.server.requests.replies import frame_parts
from klamm.server.services import Services

KRAFT_VERSION = "kraft.version"
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(services: Services, context: RequestContext, request: ApiVersionsRequest) -> object:
    """List the routes and the features."""
    if context.version >= 3:
        # KIP-511: Kafka refuses names that do not match this pattern.
        if not _SOFTWARE.fullmatch(request.client_software_name) or not _SOFTWARE.fullmatch(
            request.client_software_version
        ):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        context.connection.software_name = request.client_software_name
        context.connection.software_version = request.client_software_version
    image = services.image
    # kraft.version is the quorum's own: its level is a control record, not part of the image.
    kraft_version = services.raft.core.voter_history.latest.kraft_version
    if context.meter is not None:
        return _list(services, context, kraft_version)  # the meter adds its throttle time
    # Made once per state, and not per connection: to encode it takes as long as a third of a TLS handshake.
    state = (image.provenance.offset, image.features, kraft_version)
    known, body = context.listener.encoded_versions.get(context.version, (None, b""))
    if known != state:
        parts: list[Any] = []
        encode_into(_list(services, context, kraft_version), context.version, parts)
        body = b"".join(parts)
        context.listener.encoded_versions[context.version] = (state, body)
    context.channel.reply_parts(frame_parts(context, [body]))
    return ANSWERED


def _list(services: Services, context: RequestContext, kraft_version: int) -> ApiVersionsResponse:
    image = services.image
    supported = {**services.supported_features, KRAFT_VERSION: FeatureRange(0, DYNAMIC)}
    finalized = {**image.features, KRAFT_VERSION: kraft_version}
    return ApiVersionsResponse(
        api_keys=context.listener.api_keys,
        supported_features=[
            SupportedFeatureKey(name=name, min_version=levels.min_level, max_version=levels.max_level)
            for name, levels in supported.items()
            # KAFKA-17011: clients before v4 fail on a minimum of 0.
            if context.version >= 4 or levels.min_level > 0
        ],
        # Clients ignore features of a lower epoch than they have; the metadata offset only grows.
        finalized_features_epoch=image.provenance.offset,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in finalized.items()
            if level > 0 and name in supported
        ],
    )
