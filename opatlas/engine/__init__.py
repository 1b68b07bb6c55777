"""What happens to one row on a device: its inputs are made, the kernel is run, timed and checked."""
