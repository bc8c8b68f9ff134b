"""Klamm beside Apache Kafka: the same loads, one after the other in one run, as ratios."""
