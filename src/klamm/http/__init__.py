"""HTTP for the services beside the log: one application class, one server, one login for all of them.

    refusals    an error that is answered, by status and error code
    messages    requests and responses; bodies whole or as a stream
    media_types which media types are taken and given
    router      routes by the segments of the raw path
    app         the ASGI callable: limits, login, errors, access log, counters
    operations  /health/live, /health/ready, /metrics
    metrics     counters of requests, in Prometheus' text format
    login       basic and bearer authentication, client certificates
    authfile    users and permissions in a file
    binding     a listening socket
    server      serves over HTTP or HTTPS, stops in order
    thread_server  serves from a thread of another program

A service (`registry`, `rest`, a console) has its routes, and gives them to an `HttpApp`. Nothing here depends on Kafka.
"""
