"""Networks that studies train, or find trained: what cells of several kinds share.

torch is imported in functions only: studies are listed without it.
"""
