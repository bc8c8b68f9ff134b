"""The klamm command, one file per noun. Nothing of the broker is imported before a command needs it."""
