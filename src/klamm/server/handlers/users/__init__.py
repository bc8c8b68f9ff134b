"""Handlers of users and their credentials."""
