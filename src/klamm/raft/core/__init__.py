"""The pure part of the quorum: a state machine over events that reads no clock, disk, socket or random source.

`raft` is the entry point (RaftCore). It owns one `replica`, the state that all parts share, and the parts that change
it: `role_transitions`, `leader_discovery`, `elections`, `replication`, `voter_changes`. `roles`, `quorum`,
`voter_history`, `log_positions`, `requests`, `messages` and `events` are the values they work on.
"""
