"""The crash campaign: record what a workload does to the disk, cut it anywhere, reopen, compare with a model.

trace     a Disk that notes every write, truncation, rename, unlink, mkdir and sync
crash     the file system as a process kill or a power loss at a cut leaves it
model     what each partition holds after every step
workload  a seeded random life of a LogManager
verify    what reopened logs must and may hold
quorum    the same two for the folder of the metadata quorum: log, snapshots, quorum-state
run       all of it for one seed
"""
