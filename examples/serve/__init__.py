"""A network and its calibrator behind HTTP, as one ONNX file: ``python -m examples.serve``."""
