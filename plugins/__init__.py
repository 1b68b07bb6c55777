"""The pytest plugins of OpAtlas: hooks and options here, what they do in plain modules.

None of them imports torch.
"""
