"""Questions commands ask of a cluster, and the changes they ask it for: one file per subject.

Blocking, over `klamm.client.blocking_cluster`: a command asks a few things and leaves, and its first line must not wait for more
imports than these. Answers are plain values; a refusal is a KlammError with the broker's code and sentence.
"""
