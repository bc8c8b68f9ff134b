"""Words every room shares: ids, errors, the clock, config definitions, units. Imports nothing of Klamm."""
