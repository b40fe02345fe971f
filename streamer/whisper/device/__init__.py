"""From OpenVINO models to arrays: compiled for devices, bound to tensors that we own, checked there."""
