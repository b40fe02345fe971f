"""Types of arrays, by their numbers; what shape they have and what they hold is said where they are used."""

import numpy as np
from numpy.typing import NDArray

BoolArray = NDArray[np.bool_]
Float32Array = NDArray[np.float32]
FloatArray = NDArray[np.floating]
