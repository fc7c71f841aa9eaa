"""Parts of a producer: blocks in flight, reorg channels, the survey of what is published, standby."""
