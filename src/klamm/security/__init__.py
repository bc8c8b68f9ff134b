"""Authentication and authorization: principals, SASL mechanisms, TLS, ACLs, quotas.

`core` is pure. The broker (`net`, `server`) and the client use the same mechanisms from here.
"""
