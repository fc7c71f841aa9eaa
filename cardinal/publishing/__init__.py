"""Parts of the publisher: the nodes of its URL, its streams to them, and the session that decides."""
