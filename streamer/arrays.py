"""Types of arrays, by their numbers. Shape and meaning are documented at each use."""

import numpy as np
from numpy.typing import NDArray

BoolArray = NDArray[np.bool_]
Float32Array = NDArray[np.float32]
FloatArray = NDArray[np.floating]
Int16Array = NDArray[np.int16]
