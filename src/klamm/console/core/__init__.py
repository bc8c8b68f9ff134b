"""Pure parts of the console: what a cluster looked like at one moment, and the rows, plans and charts made of it."""
