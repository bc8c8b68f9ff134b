"""One module per API, named like its messages, by folder; its docstring has the versions and the behaviour.

A handler is `handle(services, context, request)`. It returns the response, an awaitable of it, a generator that handles
the request in slices, `ANSWERED` when it sends the reply itself, or None when the request gets no reply.
"""
