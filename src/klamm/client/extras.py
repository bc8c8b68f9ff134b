"""Optional packages; when one is missing, the error names the extra to install."""


def require_pyarrow() -> None:
    """Raise ModuleNotFoundError that names the extra, unless pyarrow is installed."""
    try:
        import pyarrow as pa  # type: ignore[import-untyped]  # noqa: F401, PLC0415
    except ModuleNotFoundError:
        message = "columns need pyarrow, which is not installed: pip install 'klamm[arrow]'"
        raise ModuleNotFoundError(message, name="pyarrow") from None
