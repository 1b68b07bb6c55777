"""What is known of each kernel type: whether it is replayed, by which calls, and what proves these."""
