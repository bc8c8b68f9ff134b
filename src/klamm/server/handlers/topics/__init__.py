"""Topics and partitions as clients see them; the controller decides on changes (`requests/delegations`)."""
