"""A REST proxy over any cluster that speaks Kafka's protocol: records and administration by HTTP.

The interfaces are those of Kafka REST: v2 (produce, consumer instances) and v3 (clusters, brokers, topics, settings,
partitions, groups, ACLs, streamed records). A pure client of the cluster, and of a schema registry if it has one.

    core         bodies, formats, resources, error codes; pure
    producing    one producer for all requests; records in order, answers as they are acknowledged
    instances    consumer instances of v2, which expire
    schemas      keys and values with a schema of the registry
    clients      the clients of one identity: an admin, a producer, schemas
    callers      clients with the logins of callers, which the cluster checks
    service      the clients of the cluster, started and stopped together
    app          routes
    openapi      the description of the interfaces
    server       a proxy for `klamm.http.server`
"""
