"""Which devices the caller made visible: as the drivers read their variables."""

from __future__ import annotations

import pytest

from opatlas.run.devices.device import DeviceSpec, device_kinds, pin_devices, visible_ids


@pytest.mark.parametrize("variable", [kind.visible for kind in device_kinds().values() if kind.visible])
@pytest.mark.parametrize(
    ("value", "ids"),
    [
        (None, ["0", "1", "2", "3"]),
        ("2,0", ["2", "0"]),
        (" 1 , 3 ", ["1", "3"]),
        ("", []),
        ("-1", []),
        ("0,-1,1", ["0"]),
        ("0,7,1", ["0"]),
        ("1,1,2", ["1"]),
        ("GPU-5f1c,MIG-77", ["GPU-5f1c", "MIG-77"]),
    ],
)
def test_the_list_ends_at_the_first_invalid_device(variable: str, value: str | None, ids: list[str]) -> None:
    environment = {} if value is None else {variable: value}
    assert visible_ids(variable, 4, environment) == ids


def test_each_process_is_shown_its_own_device_alone() -> None:
    specs = pin_devices(DeviceSpec("cuda"), "CUDA_VISIBLE_DEVICES", ["2", "GPU-5f1c"])
    assert [(spec.index, spec.pinned) for spec in specs] == [
        (0, ("CUDA_VISIBLE_DEVICES", "2")),
        (1, ("CUDA_VISIBLE_DEVICES", "GPU-5f1c")),
    ]
