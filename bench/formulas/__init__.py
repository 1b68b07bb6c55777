"""The formulas that the results of kernels are checked with: plain, and in float64.

They are written apart from `opatlas.bench.implementations`, so that neither can hide a mistake of the other. A family
has a module; `formulas.NAME` is the formula of that name in any module.
"""

from opatlas.run.registry import functions_of_modules

__getattr__ = functions_of_modules(__name__, __path__)
