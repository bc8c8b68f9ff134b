"""Decisions about connections: which may be opened, and whose bytes may be received; pure."""
