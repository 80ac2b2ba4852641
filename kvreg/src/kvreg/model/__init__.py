"""The types that the client, the registry and the builder share. Standard library only."""
