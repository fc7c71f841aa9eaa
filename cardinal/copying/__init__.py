"""Streams from one transport to another: recorded, merged by time, replayed."""
