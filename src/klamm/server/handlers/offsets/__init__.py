"""Committed offsets of groups, and where their coordinator is."""
