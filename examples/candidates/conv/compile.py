# verdict: compile/assertion
import torch


class CompilationError(Exception):
    """Has the name of Triton's error."""


class CompileTimeAssertionFailure(CompilationError):
    """Has the name of Triton's error."""


class ModelNew(torch.nn.Module):
    def __init__(self, channels_in, channels_out, size):
        super().__init__()

    def forward(self, images):
        raise CompileTimeAssertionFailure("at 7:4: static_assert(BLOCK >= 16)")
