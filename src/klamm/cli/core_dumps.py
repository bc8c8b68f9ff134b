"""Core dumps of commands are disabled: the memory of a client or a node has passwords and keys."""

import os

VARIABLE = "KLAMM_CORE_DUMPS"


def disable_core_dumps() -> None:
    """Set the soft limit of core dumps to 0, for this process and those it starts; KLAMM_CORE_DUMPS=1 leaves it."""
    if os.environ.get(VARIABLE) == "1":
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
