"""The pure half of the capture: bytes of pgoutput in, records of changes out."""
