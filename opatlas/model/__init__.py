"""What a row is: its columns, slots, signature, status, how good its samples are, and where its database lies."""
