"""Notice when the confidences of a model in use become wrong, with stated false alarms."""
