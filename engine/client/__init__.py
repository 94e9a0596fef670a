"""The client of a live API server: connection, transport, and what keeps a view of its objects."""
