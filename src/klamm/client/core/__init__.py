"""Pure parts that producer, consumer and admin share: no sockets, clocks, threads or randomness."""
