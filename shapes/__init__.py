"""The catalog of calls that models make, the models, and `pytest shapes/`, which adds theory rows to a database."""
