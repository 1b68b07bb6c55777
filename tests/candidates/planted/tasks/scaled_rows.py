"""Scaled numbers, of numpy: the task prescribes no dtype."""

import numpy as np


class Model:
    def __call__(self, x):
        return x * np.float32(0.8)


def get_inputs():
    return [np.random.randn(32, 64).astype(np.float32)]


def get_init_inputs():
    return []
