"""Classic groups: members join, one of them assigns, the broker passes the assignment on.

`state` is the table of states, `member` and `group` what is known of a group, `records` how it is kept; `rebalance`
moves a group through a rebalance, and `joining`, `syncing`, `leaving` decide the requests of members.
"""
