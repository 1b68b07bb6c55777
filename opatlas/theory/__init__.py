"""Theory rows: calls that models make, drawn by hypothesis, for a database that has too few of its own."""
