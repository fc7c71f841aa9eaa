"""Configuration: URLs, settings files, environment variables and secrets, parsed once to values."""
