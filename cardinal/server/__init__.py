"""Long-running services, which commands run until they are stopped."""
