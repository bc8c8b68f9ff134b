"""The metrics of a node: collected on the loop in slices, formatted and sent in threads.

`collector` reads the node into a `NodeSnapshot` of plain values; `families` turns a snapshot into metrics with
the names that dashboards use; `endpoint` serves them, and the health of the node and the cluster; `otlp_exporter` sends
them to a collector.
"""
