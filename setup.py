"""Builds the compiled record kernels; without a C compiler the install goes on and they run interpreted.

Everything else about the package is in pyproject.toml.
"""

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNELS = ["klamm.records.kernels"]


class OptionalBuild(build_ext):
    """A kernel that cannot be compiled is left as Python, with one line that says so."""

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:  # noqa: BLE001 - any failure of a compiler must not fail the install
            print(f"klamm: kernels were not compiled ({error}); they run interpreted, correct but slower")  # noqa: T201

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except Exception as error:  # noqa: BLE001
            print(f"klamm: {ext.name} was not compiled ({error}); it runs interpreted, correct but slower")  # noqa: T201


def extensions() -> list[Extension]:
    try:
        from Cython.Build import cythonize  # noqa: PLC0415 - without Cython the kernels stay Python
    except ImportError:
        print("klamm: Cython is not installed; the kernels run interpreted, correct but slower")  # noqa: T201
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
                extra_compile_args=["-O3", "-Wno-unreachable-code", "-Wno-maybe-uninitialized"],
            )
        )
    modules: list[Extension] = cythonize(sources, language_level=3, build_dir="build")
    return modules


setup(ext_modules=extensions(), cmdclass={"build_ext": OptionalBuild})
