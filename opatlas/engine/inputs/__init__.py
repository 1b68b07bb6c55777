"""What a row says about its call, and the tensors that follow from it."""
