"""How records travel: sources and sinks, chosen by URL scheme."""
