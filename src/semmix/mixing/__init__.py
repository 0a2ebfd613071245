"""Mixed sets: soft labels, the plan, the store, the loop that fills it."""
