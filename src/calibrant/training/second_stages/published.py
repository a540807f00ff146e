"""Arguments of `MaCCal` for what its paper measures."""

from __future__ import annotations

from typing import Any

# The steps of the paper's ablation, each on top of the one before.
ABLATION: dict[str, dict[str, Any]] = {
    "masked retraining": {"restrict_gradient": False, "adaptation": "none"},
    "gradient restriction": {"adaptation": "none"},
    "bottleneck": {"bottleneck": True, "adaptation": "none"},
    "static adaptation": {"bottleneck": True, "adaptation": "static"},
    "decaying adaptation": {"bottleneck": True},
}
# What the paper says of its head; how long a feature row is, which its rate depends on, and how
# kappa is found are not said, so give a kappa of your own.
PAPER: dict[str, Any] = {"bottleneck": True, "learning_rate": 0.1, "epochs": 40}
