"""A known-good operation: does a device that was opened anew compute what it should?"""

from __future__ import annotations

import torch

from opatlas.model.errors import DeviceUnhealthy

_SIZE = 64


def probe(device: torch.device) -> None:
    """Multiplies two matrices of small integers, whose product is exact in every float type, and reads it back.

    Raises:
        DeviceUnhealthy: the product is wrong. Errors of the device come through as they are.
    """
    left = torch.arange(_SIZE, device=device).remainder(7).float().expand(_SIZE, _SIZE)
    product = (left @ left.t()).cpu()
    wanted = float(sum((i % 7) ** 2 for i in range(_SIZE)))
    wrong = int((product != wanted).sum())
    if wrong:
        raise DeviceUnhealthy(f"{wrong} of {_SIZE * _SIZE} elements of a matrix product on {device} are wrong")
