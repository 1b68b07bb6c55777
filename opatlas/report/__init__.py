"""What a database holds, for people: overviews, tables and plots."""
