"""Everything done once per record, kept apart because it is compiled.

The install compiles one module per purpose with Cython: `decode` (batches to rows), `columns` (batches to Arrow
buffers), `encode` (rows and columns to batches), `produce` (batches as they arrive), `compaction`, `recovery`,
`partitioning` and `memory`. The same files run as plain Python where they were not compiled. Both forms give equal
results, and both treat the bytes as hostile. What the modules share is in `layout` (names of integers) and `primitives`
(varints, records, buffers, checksums): C in the .pxd for the compiled form, Python in the .py for the other.
"""

from importlib import import_module

from klamm.model.switches import interpreted_kernels, load_interpreted

MODULES = ("columns", "compaction", "decode", "encode", "memory", "partitioning", "produce", "recovery")
"""The modules that the install compiles."""

if interpreted_kernels():
    for _module in MODULES:
        load_interpreted(__name__, __path__[0], _module)


def all_compiled() -> bool:
    """Whether every module runs as C."""
    return all(import_module(f"{__name__}.{module}").COMPILED for module in MODULES)
