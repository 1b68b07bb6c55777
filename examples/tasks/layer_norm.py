"""A task of numpy: the layer norm without weights."""

import numpy as np


class Model:
    def __init__(self, epsilon):
        self.epsilon = epsilon

    def __call__(self, x):
        mean = x.mean(axis=-1, keepdims=True)
        variance = x.var(axis=-1, keepdims=True)
        return (x - mean) / np.sqrt(variance + self.epsilon)


def get_inputs():
    return [np.random.randn(64, 256).astype(np.float32)]


def get_init_inputs():
    return [1e-5]
