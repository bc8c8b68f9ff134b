"""The voters of the metadata quorum; what its members send each other is in `requests/delegations`."""
