"""What all packages share: ids, errors, the clock, config definitions, units. Imports nothing of Klamm."""
