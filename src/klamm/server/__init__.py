"""The node: puts the rooms together, routes requests to handlers, follows the metadata log.

`node` is the composition root and the only place that knows all rooms. A handler is one file per API family; it sees
the node through `Services` and the request through `RequestContext`, and returns a response or something to await.
"""
