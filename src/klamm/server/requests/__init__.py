"""A request from its frame to its reply: routing, decoding, forwarding to the controller, encoding."""
