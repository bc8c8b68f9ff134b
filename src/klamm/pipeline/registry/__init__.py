"""Records with schemas as columns of Spark: `from_registry`, `to_registry`, and records that cannot be decoded.

Schemas come from `klamm.registry.client`, a client of any registry with Confluent's interface; `klamm.registry.codecs`
decodes and encodes, and `klamm.registry.framing` is how a record names its schema.
"""
