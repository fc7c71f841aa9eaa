"""Complete blocks in any order to chain updates: fork graph and fork choice."""
