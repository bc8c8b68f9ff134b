"""Admin requests: one class per family, all of them together in `async_admin`; values in `types`.

Every method returns plain values and raises KafkaError. A method that acts on several items raises the error itself
when a single one was requested, and SomeFailed, which holds failures and results, when there were more. What takes
several items takes a list of them: a single one is a TypeError, before anything is sent.

Nothing is imported here, so that a command that needs one family does not pay for the messages of all.
"""
