"""The ecosystem gate: programs written elsewhere run against a three-node cluster, with Apache Kafka as their control.

`compat` asks whether single requests, tools and clients are answered as Kafka answers them. This package asks whether
whole programs (stream processors, connectors, mirrors, transactional applications) come to the right result while
processes die. It owns the cluster and process fixtures, the recorder and the table in docs/compatibility.md.
"""
