"""Starts processes in sessions of their own, which outlive it."""

import subprocess

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        subprocess.Popen(["sh", "-c", "setsid setsid sleep 3011 & exec sleep 3011"], start_new_session=True)

    def forward(self, x):
        return torch.softmax(x, -1)
