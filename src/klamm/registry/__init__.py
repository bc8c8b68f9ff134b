"""The schema registry: Confluent's HTTP interface over the topic `_schemas` of any cluster.

    schemas     parsing, canonical forms and compatibility of Avro, JSON Schema and Protobuf (pure)
    store       what the records of the topic mean, and what requests write (pure)
    log         reads the topic; writes it fenced by transactions
    election    the group of registries, one of which writes
    service     a running registry
    checks      parses and compares off the event loop
    rights      who may do what with a subject
    write_queue changes that wait, and which of them share a transaction
    app         the HTTP interface as an ASGI application
    metrics     what it reports to Prometheus
    server      puts them together for klamm.http
    client      the client of any registry
    serializers what the Python client takes as key.serializer, value.deserializer and so on
    codecs      values of a schema: bytes to values, Arrow types
    framing     how a record names its schema
    rules       which rules of a schema hold for a record, and what executes them

A client of the cluster like any other: nothing here imports a broker.
"""
