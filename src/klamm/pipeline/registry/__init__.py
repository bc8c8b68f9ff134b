"""Records with schemas: the framing of a schema registry, and values of Avro, JSON Schema and Protobuf as columns.

    client                                the registry's REST interface; schemas are cached by process
    avro, json_schema, protobuf, codecs   a schema as an Arrow type, bytes to values and back
    columns                               from_registry and to_registry for Spark; records that cannot be decoded

The REST interface is that of Confluent's registry, which others share. `core.registry_framing` is the pure part.
"""
