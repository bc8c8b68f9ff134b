"""Builds the compiled kernels; without a C compiler the install goes on and they run interpreted.

Everything else about the package is in pyproject.toml.
"""

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNELS = ["klamm.records.kernels", "klamm.coordinator.groups.kernels"]


class OptionalBuild(build_ext):
    """A kernel that cannot be compiled is left as Python, with one line that says so."""

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:  # noqa: BLE001 - any failure of a compiler must not fail the install
            interpreted("the kernels", error)

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except Exception as error:  # noqa: BLE001
            interpreted(ext.name, error)


def interpreted(what: str, reason: object) -> None:
    """The one line that says what is slower and what would help."""
    words = reason if isinstance(reason, str) else type(reason).__name__
    print(f"klamm: {what} not compiled, running interpreted (slower); needs a C compiler, Python.h, Cython: {words}")  # noqa: T201


def extensions() -> list[Extension]:
    try:
        from Cython.Build import cythonize  # noqa: PLC0415 - without Cython the kernels stay Python
    except ImportError:
        interpreted("the kernels", "Cython is not installed")
        return []
    sources = []
    for name in KERNELS:
        path = f"src/{name.replace('.', '/')}"
        sources.append(
            Extension(
                name,
                [f"{path}.py"],
                depends=[f"{path}.pxd"],
                optional=True,
                extra_compile_args=["-O3", "-g0", "-Wno-unreachable-code", "-Wno-maybe-uninitialized"],
            )
        )
    modules: list[Extension] = cythonize(sources, language_level=3, build_dir="build")
    return modules


setup(ext_modules=extensions(), cmdclass={"build_ext": OptionalBuild})
