"""The routes of a REST proxy.

application    the ASGI application: media types by interface, errors of the cluster
addresses      the address that a request came to, for links
topics_v2, consumers_v2                      v2
clusters_v3, topics_v3, partitions_v3, configs_v3, groups_v3, acls_v3, records_v3    v3
"""

from klamm.rest.app.application import RestApp

__all__ = ["RestApp"]
