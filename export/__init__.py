"""The export toolchain of forerun: checkpoints become one folder of ONNX graphs."""
