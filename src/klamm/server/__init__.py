"""The node: composes the packages, routes requests to handlers, follows the metadata log.

`node` starts and stops what `composition` has made; only these two refer to all parts. A handler is one module per API.
It gets the node as `Services` and the request as `RequestContext`, and returns a response or an awaitable.

    boot/          configuration, folders and environment of a node before it runs
    login/         who a connection is: SASL and TLS before its first request
    requests/      frames to handlers and back; forwarding to the controller
    handlers/      one module per API
    cluster/       the broker as a member of its cluster
    controller/    this node's controller and its member of the metadata quorum
    coordinators/  groups and transactions
    settings/      effective configs, followed in the metadata log
    metrics/       what is measured, health, scrapes
"""
