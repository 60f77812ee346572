"""The models: layers, stacks of layers, and the encoder-decoder as pure functions of a parameter tree."""
