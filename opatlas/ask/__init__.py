"""Questions to databases: durations of calls, costs of models, comparisons, checks."""
