"""Words every room shares: ids, errors, the clock, config definitions. Imports nothing of Klamm."""
