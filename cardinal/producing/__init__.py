"""What a producer is made of: blocks under way, reorg channels, the tail of the topics, what is published."""
