"""Torch's global generator."""

from __future__ import annotations

from typing import Any, cast

import torch


def seed_everything(seed: int) -> None:
    """Seed torch's generators of all devices."""
    # `Any`, because torch's types leave the seed open.
    cast(Any, torch).manual_seed(seed)
