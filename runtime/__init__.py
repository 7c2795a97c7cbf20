"""Speculative decoding for the edge on stock ONNX Runtime: the runtime of forerun."""
