"""DispatchFFNCombine, which needs a group of devices, and which shapes it takes."""
