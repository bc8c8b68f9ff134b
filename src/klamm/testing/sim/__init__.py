"""A whole cluster in one thread: real node code under a seeded scheduler that owns clock, network and disk.

loop       virtual time; one loop for all processes
net        machines, paths, connections that arrive late or break
disk       page cache, device, what a crash leaves
threads    slow work, done at an instant chance chooses
cluster    machines that run nodes
"""
