"""Before a node runs: its configuration, the folders it opens, the environment it takes clocks and disks from."""
