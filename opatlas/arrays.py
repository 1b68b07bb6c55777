"""Names for types of arrays."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
#: Positions of rows in a table.
Positions = npt.NDArray[np.intp]
