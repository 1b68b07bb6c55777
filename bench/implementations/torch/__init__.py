"""The functions that CUDA and CPU are timed with: the best form of each kernel in torch's own operators.

A family has a module. `impl.NAME` is the function of that name in any module, or else torch's own: `impl.abs` is
torch.abs, `impl.silu` torch.nn.functional.silu, `impl.copy_` Tensor.copy_.
"""

from opatlas.run.registry import functions_of_modules

__getattr__ = functions_of_modules(__name__, __path__, "torch", "torch.nn.functional", "torch.Tensor")
