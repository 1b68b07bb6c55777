"""What every device's result is checked against: each kernel's formula, plain and in float64.

Written apart from `opatlas.bench.implementations.torch`, so that neither can hide a mistake of the other. A module for
each family; `formulas.NAME` finds a formula in whichever module defines it.
"""

from opatlas.engine.registry import functions_of_modules

__getattr__ = functions_of_modules(__name__, __path__)
