"""Records with schemas: the framing of a schema registry, and values of Avro, JSON Schema and Protobuf as columns.

    framing              pure: which schema a record names, in its first bytes or in a header
    client               asking a registry, each schema once
    avro, jsons, protobuf, codecs   a schema as a type of Arrow, bytes as values of it, and back
    columns              from_registry and to_registry for Spark; what becomes of records that are broken

The room speaks the REST interface that Confluent's registry has and others share. It keeps no schemas of its own.
"""
