"""Pure parts of the producer: what to send, to which partition, in which sequence; no sockets, clocks or threads."""
