"""Rights of clients: the right that every API needs, the checks that handlers make, and the audit lines.

The rules are in `security/core`; an API's row in `rights` and the check in its handler decide where they apply.
"""
