"""The type of bytes that code reads without copying them."""

Buffer = bytes | bytearray | memoryview
