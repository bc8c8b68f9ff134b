"""Values of Avro, JSON Schema and Protobuf: bytes to values and back, and a schema as an Arrow type.

compilation                    a schema of any kind as a codec; records of any schema to one reader's schema
avro, json_schema, protobuf    one codec each, over fastavro, jsonschema-rs and protobuf
"""
