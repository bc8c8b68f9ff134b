"""Consumer groups of the new protocol (KIP-848): the coordinator assigns, members reconcile one heartbeat at a time.

A group has an epoch that grows with every change of its members, subscriptions or topics; a target assignment computed
for an epoch; and members that reconcile to it one by one: revoke first, wait until others have revoked, then take.
`group` is the state and replays records, `member` one member, `reconcile` its next step; `heartbeat`, `leaving` and
`classic_members` decide; `migration` turns classic groups into these and back. Sessions and deadlines are timers of the
shard, records are those of `klamm.protocol.messages.group_records`.
"""
