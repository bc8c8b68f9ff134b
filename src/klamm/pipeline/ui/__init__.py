"""The page of a running pipeline: an ASGI application over its status, and the server of `run --ui`.

It owns no state of the pipeline: it reads the status that the supervisor publishes, keeps an hour of it in memory, and
sends pause, resume and restart as requests, as the commands do.
"""
