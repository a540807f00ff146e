"""Notice when the confidence of a deployed model stops being honest, with stated false alarms."""
