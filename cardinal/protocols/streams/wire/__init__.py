"""Messages as bytes: the nine message types, their keys and their Avro values."""
