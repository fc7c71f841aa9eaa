"""Commands of the developer kit."""
