"""Theory rows: the catalog of calls that models make, and `pytest shapes/`, which adds them to a database."""
