"""What requests mean and what answers look like, without a socket or a clock.

refusals         error codes and texts, and which Kafka error is which
media_types      embedded formats by Content-Type and Accept
embedded         keys and values between JSON and bytes: binary, JSON, string
fields           typed fields of JSON bodies
produce_v2, produce_v3, consumer_requests, admin_requests    bodies
record_stream    JSON objects that follow one another in a body of any length
resources        objects of v3: kind, metadata, links
instance_table   consumer instances: names, owners, expiry, limits
"""
