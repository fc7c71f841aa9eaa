"""Standby producers: ranks, and the messages of other producers on the topic."""
