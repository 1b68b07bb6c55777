"""The processes that hold devices: pytest starts them, gives them jobs, and ends them with all that they started."""
