"""The consumer: pure parts in `core` (subscription, assignors, fetch sessions, fetch buffer) under a shell.

`fetcher` reads ahead, `classic_protocol` and `consumer_protocol` are the two group protocols, `assignment` applies what
the group assigned, `fetch_positions` decides where reading continues, `commits` commits positions, `offsets` sends the
requests about offsets; `consumer` is the public class.
"""

from klamm.client.consumer.consumer import AsyncConsumer

__all__ = ["AsyncConsumer"]
