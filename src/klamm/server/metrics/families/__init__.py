"""Turns a snapshot into metrics, by the names that dashboards use; runs in threads."""

from klamm.server.metrics.families.build import ScrapeLines, build_families

__all__ = ["ScrapeLines", "build_families"]
