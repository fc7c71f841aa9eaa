"""The fault kit: a producer and a consumer at work on a real broker while things are broken, and what held."""
