"""The pure part of the quorum: decides over events, without a clock, a disk, a socket or chance of its own."""
