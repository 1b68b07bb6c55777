"""Convolution of images with weights of its own, and a bias."""

import torch


class Model(torch.nn.Module):
    def __init__(self, channels_in, channels_out, size):
        super().__init__()
        self.conv = torch.nn.Conv2d(channels_in, channels_out, size, padding=size // 2)

    def forward(self, images):
        return self.conv(images)


def get_inputs():
    return [torch.randn(2, 8, 16, 16)]


def get_init_inputs():
    return [8, 16, 3]
