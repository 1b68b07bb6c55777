"""Leaves a process that has no parent, ignores signals and has another name, as daemons do."""

import subprocess
import sys

import torch
from torch import nn

CODE = """
import os, signal, sys
for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(each, signal.SIG_IGN)
if os.fork() or (os.setsid() and os.fork()):
    os._exit(0)
os.closerange(0, 3)
os.execve("/bin/sleep", ["sleep", "3011"], {})
"""


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        subprocess.run([sys.executable, "-c", CODE], check=False)

    def forward(self, x):
        return torch.softmax(x, -1)
