"""Policy ``quorum:k``: blocks on which k producers agree."""
