"""Decisions about identity and rights, without sockets, files or clocks."""
