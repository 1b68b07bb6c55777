"""Says why kernels are slow, and what to do about it.

kernels.py             the kernels of a capture or of a database as one table
peaks.py               the peaks and cores of the device, and the roofline share of each kernel
verdicts.py            the verdicts of all kernels at once; rules.yaml has their tests, limits and advice
diagnosis.py           verdicts, time lost and ranking of a capture or database
shown.py               a diagnosis, and two of them side by side, as tables and JSON
improve.py             what a model is asked for; the loop that measures answers against the baseline of the row
command.py             `opatlas diagnose`, and the page of `opatlas report`
"""

from opatlas.installation import Command

COMMAND = Command(
    "Ask", "why kernels are slow; which scopes a SuperKernel may fuse", "opatlas.outer.diagnosis.command:diagnose"
)
