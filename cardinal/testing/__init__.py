"""Public fakes, generators and fault scripts for tests, ours and yours."""
