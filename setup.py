"""Builds the compiled kernels; without a C compiler the install goes on and they run interpreted.

Everything else about the package is in pyproject.toml.
"""

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNELS = [
    "klamm.records.kernels.columns",
    "klamm.records.kernels.compaction",
    "klamm.records.kernels.decode",
    "klamm.records.kernels.encode",
    "klamm.records.kernels.memory",
    "klamm.records.kernels.partitioning",
    "klamm.records.kernels.produce",
    "klamm.records.kernels.recovery",
    "klamm.coordinator.groups.kernels",
]
SHARED = ["src/klamm/records/kernels/layout.pxd", "src/klamm/records/kernels/primitives.pxd"]


class OptionalBuild(build_ext):
    """A kernel that cannot be compiled is left as Python, with one line that says so."""

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:  # noqa: BLE001 - any failure of a compiler must not fail the install
            report_interpreted("the kernels", error)

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except Exception as error:  # noqa: BLE001
            report_interpreted(ext.name, error)


def report_interpreted(kernel: str, reason: object) -> None:
    """Print what runs slower and what compiling it needs."""
    cause = reason if isinstance(reason, str) else type(reason).__name__
    print(f"klamm: {kernel} not compiled, running interpreted (slower); needs a C compiler, Python.h, Cython: {cause}")  # noqa: T201


def extensions() -> list[Extension]:
    try:
        from Cython.Build import cythonize  # noqa: PLC0415 - without Cython the kernels stay Python
    except ImportError:
        report_interpreted("the kernels", "Cython is not installed")
        return []
    sources = [
        Extension(
            name,
            [f"src/{name.replace('.', '/')}.py"],
            depends=SHARED,
            optional=True,
            extra_compile_args=["-O3", "-g0", "-Wno-unreachable-code", "-Wno-maybe-uninitialized"],
        )
        for name in KERNELS
    ]
    # Kernels cimport from each other's package, which Cython looks for below src.
    modules: list[Extension] = cythonize(sources, language_level=3, build_dir="build", include_path=["src"])
    return modules


setup(ext_modules=extensions(), cmdclass={"build_ext": OptionalBuild})
