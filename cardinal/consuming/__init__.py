"""What a consumer is made of: reading topics and channels, where to begin, what is done about overdue blocks."""
