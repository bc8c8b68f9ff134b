"""A whole cluster in one thread: real node code under a seeded scheduler that owns clock, network and disk.

loop       virtual time; one loop for all processes
net        machines, paths, connections that arrive late or break; `sockets` and `tls` are what nodes make of them
disk       page cache, device, what a crash leaves
threads    slow work, done at an instant chance chooses
cluster    machines that run nodes
layout     which node is what
plan       what a run does, and the situations plans are drawn from
run        one run of one seed
faults     what goes wrong; `limits` says how much of it at once
users      who logs in to a secured cluster; `guests` try what they may not, `rights` is the model they are judged by
ledger     what clients were promised; `watch`, `final` and `convergence` judge the nodes by it
bugs       planted, to see whether all this finds them
"""
