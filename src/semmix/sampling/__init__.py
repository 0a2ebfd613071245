"""From noise to images: noise schedules, solvers, and the loop that fills a store."""
