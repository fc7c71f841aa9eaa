"""What `cardinal serve` is made of: a ring of recent records, a source that fills it, and a session for each client."""
