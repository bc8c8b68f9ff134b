"""The node: composes the packages, routes requests to handlers, follows the metadata log.

`node` starts and stops what `composition` has made; these two alone know all parts. A handler is one module per API; it
sees the node through `Services` and the request through `RequestContext`, and returns a response or an awaitable.

    boot/          configuration, folders and environment of a node before it runs
    requests/      frames to handlers and back; forwarding to the controller
    handlers/      one module per API
    cluster/       the broker as a member of its cluster
    controller/    this node's controller and its member of the metadata quorum
    coordinators/  groups and transactions
    settings/      effective configs
"""
