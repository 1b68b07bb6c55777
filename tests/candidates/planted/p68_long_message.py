"""Way 68: announces pytest a message of four gigabytes.

Task: softmax
Device: cpu
Expected: crash
Caught by: the longest message
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        try:
            raise ValueError
        except ValueError as error:
            frame = error.__traceback__.tb_frame
            if x is None:
                raise
        while frame.f_code.co_name != "main" or "channel" not in frame.f_locals:
            frame = frame.f_back
        channel = frame.f_locals["channel"]
        channel._socket.sendall(channel._token + b"\xff\xff\xff\xff")
        return torch.softmax(x, -1)
