"""Parts of a consumer: the reader of topics and channels, the start position, healing of overdue blocks."""
