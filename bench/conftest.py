"""The fixtures that a replay may name; plugins/collector.py describes each fixture."""

from opatlas.plugins.collector import custom_opp, device, group, msprof, npu, replay, row

__all__ = ["custom_opp", "device", "group", "msprof", "npu", "replay", "row"]

#: Collectives take all devices and have databases of their own: they are collected when their file is named.
collect_ignore = ["test_collectives.py"]
