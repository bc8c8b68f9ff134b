"""Rights and quotas of clients: the right that every API needs, the checks of handlers, audit lines, throttling.

The rules are in `security/core`; an API's row in `rights` and the check in its handler decide where they apply.
"""
