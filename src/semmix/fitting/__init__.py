"""Own images: `fit` looks at them, plans, prepares, trains candidates, chooses and ships."""
