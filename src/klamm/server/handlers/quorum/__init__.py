"""The metadata quorum: votes, epochs, snapshots, voters."""
