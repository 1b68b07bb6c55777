"""Way 34: writes an answer of its own to all that the process has open, and ends.

Task: softmax
Expected: crash
Device: cpu
Caught by: an answer has the token of its job, which the candidate does not know; pytest's process decides
"""

import os
import pickle

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        answer = pickle.dumps({"status": "measured", "samples_us": [0.1] * 20})
        for number in map(int, os.listdir("/proc/self/fd")):
            if os.path.realpath(f"/proc/self/fd/{number}").startswith(f"/proc/{os.getpid()}/fd/socket:"):
                os.write(number, len(answer).to_bytes(8, "big") + answer)
        os._exit(0)
