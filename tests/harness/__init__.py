"""Shared by the tests of a node from outside: a process, a raw wire client, a proxy that cuts connections."""

from harness.cluster import KlammCluster, NodeProcess
from harness.inprocess import NodeThread
from harness.links import Links
from harness.process import KLAMM, KlammFailed, KlammProcess
from harness.proxy import CuttingProxy
from harness.wire import Wire, batch, rows, unique

__all__ = [
    "KLAMM",
    "CuttingProxy",
    "KlammCluster",
    "KlammFailed",
    "KlammProcess",
    "Links",
    "NodeProcess",
    "NodeThread",
    "Wire",
    "batch",
    "rows",
    "unique",
]
