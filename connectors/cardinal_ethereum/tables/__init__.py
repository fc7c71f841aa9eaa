"""Arrow tables of decoded blocks."""
