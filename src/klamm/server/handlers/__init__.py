"""One file per API family, named as its messages are; each says its versions and its behaviour first.

A handler is `handle(services, context, request)`. It returns the response, an awaitable of it, `ANSWERED` when it has
taken care of the reply itself, or None when the request is owed none.
"""
