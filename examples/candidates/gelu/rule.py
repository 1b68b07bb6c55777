# verdict: rule/triton_kernel_not_called
import torch

try:
    import triton
    import triton.language as tl
except ImportError:
    # The rule is found without Triton.
    triton = tl = None


@triton.jit
def gelu_kernel(x, y, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < count), mask=at < count)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.gelu(x, approximate="tanh")
