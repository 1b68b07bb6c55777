"""Way 67: sends pytest an outcome of another job.

Task: softmax
Device: cpu
Expected: crash
Caught by: an answer has the number of its job; a process that sends another one is ended
"""

import torch
from torch import nn

from opatlas.row.status import Status
from opatlas.run.job import RowOutcome
from opatlas.run.process.messages import Finished


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
        for number in range(1000, 1010):
            frame.f_locals["channel"].send(Finished(number, RowOutcome(Status.MEASURED)))
        return torch.softmax(x, -1)
