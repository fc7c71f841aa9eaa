"""Records in any order to complete blocks."""
