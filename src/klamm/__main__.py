"""`python -m klamm` is the klamm command."""

from klamm.cli.main import main

main()
