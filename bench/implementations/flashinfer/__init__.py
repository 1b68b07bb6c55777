"""FlashInfer's kernels, with the interface of flashinfer-python 0.5.3.

Calls run without programmatic dependent launch: with it a kernel starts before the previous kernel ends, and the sum of
the durations counts that time twice. The wrappers of attention plan once for all layers of a step, so `plan` is set-up.
"""

DISTRIBUTIONS = ("flashinfer-python", "apache-tvm-ffi")
DEVICES = ("cuda",)
