"""The paper's tables and ours as commands: cells, seeds, jobs, costs."""
