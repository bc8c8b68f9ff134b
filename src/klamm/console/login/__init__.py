"""Logins of the console: passwords, sessions, and tokens that forms carry."""
