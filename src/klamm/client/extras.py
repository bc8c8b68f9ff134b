"""Packages that only some functions need; where one is missing, its error says what to install."""


def require_pyarrow() -> None:
    """ModuleNotFoundError that names the extra, unless pyarrow is there."""
    try:
        import pyarrow as pa  # type: ignore[import-untyped]  # noqa: F401, PLC0415
    except ModuleNotFoundError:
        said = "columns need pyarrow, which is not installed: pip install 'klamm[arrow]'"
        raise ModuleNotFoundError(said, name="pyarrow") from None
