"""Ranks within rows, of numpy: whole numbers, and the task prescribes no dtype."""

import numpy as np


class Model:
    def __call__(self, x):
        return x.argsort(-1).argsort(-1)


def get_inputs():
    return [np.random.randn(32, 64).astype(np.float32)]


def get_init_inputs():
    return []
