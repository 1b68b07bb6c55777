"""What a result must be, and whether it is."""
