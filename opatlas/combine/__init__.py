"""Combines databases that were measured apart, pools their runs, and rebuilds CSVs from histories."""
