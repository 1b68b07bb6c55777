"""What is timed on CUDA and CPU: each kernel's best form in torch's own operators.

A module per family; `impl.NAME` finds the function in whichever module lists it in `__all__`.
"""

from opatlas.engine.lazy import functions_of_modules

__getattr__ = functions_of_modules(__name__, __path__)
