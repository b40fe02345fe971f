"""From a checkpoint, or a directory of graphs, to OpenVINO models."""
