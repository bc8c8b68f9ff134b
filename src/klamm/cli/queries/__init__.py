"""Requests of commands: the admin families of `klamm.client` over a `BlockingCluster`, one file per subject.

Families and their messages are imported where they are used: a command must not wait for imports that it does not need.
"""
