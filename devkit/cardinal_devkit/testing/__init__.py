"""Fakes, generators and faults for tests."""
