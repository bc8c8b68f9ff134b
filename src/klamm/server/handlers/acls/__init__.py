"""ACLs: shown by any node from its own image, created and removed by the active controller."""
