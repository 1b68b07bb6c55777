"""What is timed on CUDA and CPU: each kernel's best form in torch's own operators.

A module for each family; `impl.NAME` finds a function in whichever module defines it, and else torch's own
function of that name: `impl.abs` is torch.abs, `impl.silu` torch.nn.functional.silu, `impl.copy_` torch.Tensor.copy_.
"""

from opatlas.engine.registry import functions_of_modules

__getattr__ = functions_of_modules(__name__, __path__, "torch", "torch.nn.functional", "torch.Tensor")
