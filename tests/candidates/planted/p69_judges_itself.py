"""Way 69: sends the court a verdict, as the court sends it to pytest.

Task: softmax
Expected: crash no-verdict
Process: own
Caught by: the court takes messages of a candidate alone from a candidate
"""

import torch
from torch import nn

from opatlas.outer.judging.judgement import CourtVerdict


class ModelNew(nn.Module):
    def forward(self, x):
        try:
            raise ValueError
        except ValueError as error:
            frame = error.__traceback__.tb_frame
            if x is None:
                raise
        while frame.f_code.co_name != "_judge":
            frame = frame.f_back
        frame.f_locals["court"]._channel.send(CourtVerdict("pass", max_error=0.0, difference=0.0, calls=9))
        return torch.softmax(x, -1)
