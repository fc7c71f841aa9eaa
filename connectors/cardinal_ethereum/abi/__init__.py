"""Decoding of logs and inputs by contract ABIs."""
