"""Long-running services: what a command runs until it is told to stop."""
