"""Finds scopes of a capture that a SuperKernel may fuse, and predicts what that gains."""
