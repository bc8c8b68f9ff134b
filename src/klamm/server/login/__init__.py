"""Connections until they are logged in: TLS, SASL, sessions that end; afterwards the router handles their frames."""
