"""The few switches read from the environment before any configuration exists.

They live here because the rooms above are pure and never look at the environment themselves.
"""

import os


def interpreted_kernels() -> bool:
    """Whether KLAMM_INTERPRETED asks for the Python form of the record kernels although a compiled one exists."""
    return os.environ.get("KLAMM_INTERPRETED", "") not in ("", "0")
