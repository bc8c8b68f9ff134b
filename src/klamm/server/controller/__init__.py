"""The node's side of the metadata quorum and of the active controller, wherever that runs."""
