"""Speaking to a cluster as its client: nothing here knows how a broker works inside.

`wire` is the small, blocking way in that commands use: ask a few questions, leave.
"""
