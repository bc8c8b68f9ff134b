"""Python functions that SELECTs call: found beside the pipeline's file, or wherever Python finds modules."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from klamm.model.errors import ConfigError
from klamm.pipeline.sql.core.graph import Pipeline


def find_modules_beside(pipeline: Pipeline) -> None:
    """Let `module:function` find modules in the folder of the pipeline's file, after those of this process."""
    folder = os.path.dirname(os.path.abspath(pipeline.source.name))
    if pipeline.functions and folder not in sys.path:
        sys.path.append(folder)
        # Python caches the names in a folder: a module may have been written since.
        importlib.invalidate_caches()


def load_function(target: str) -> Callable[..., Any]:
    """Import the Python function of `module:function`."""
    module, _, name = target.partition(":")
    try:
        target_object: Any = importlib.import_module(module)
        for part in name.split("."):
            target_object = getattr(target_object, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"there is no function {target}: {error}") from None
    if not callable(target_object):
        raise ConfigError(f"{target} is not callable")
    return target_object  # type: ignore[no-any-return]
