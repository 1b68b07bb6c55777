"""Derives the arguments of a call, and their tensors, from a row.

row_slots.py    reads the slots of a row
replay_row.py   makes tensors from slots: `row` in the body of a replay
shape_rules.py  rules of shapes; factors of products, their scales and biases, indexed axes
attention.py    the call of a FusedInferAttentionScore row, and assumed lengths of sequences
experts.py      slots, sizes, group and buffers of an expert-parallel row
images.py       feature maps, filters and windows
"""
