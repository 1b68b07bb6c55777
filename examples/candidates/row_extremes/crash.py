# verdict: crash/SIGSEGV
import faulthandler

import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        faulthandler._sigsegv()
        return x.max(-1)
