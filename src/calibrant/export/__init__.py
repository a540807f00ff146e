"""A pure map of arrays leaves as an ONNX graph or as a torch module.

Nothing in here knows a calibrator: it is enough that there is a `transform`, the arrays that it
reads, and a number of classes (`exportable.py`).
"""
