"""Sessions on hosts that differ: slow, sick, with other files, cut off. Each is a network namespace with a name."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from xml.etree import ElementTree

import pytest
from moods import Mood
from ray_clusters import command_of, left
from ray_hosts import Hosts, hosts
from sessions import Running, Sessions, row, wait_for

pytestmark = pytest.mark.slow

_WAITING = (Mood.WAIT_FOR_GO, Mood.WAIT_FOR_GO_TOO)
_HEAD = os.uname().nodename


@pytest.fixture
def network(quick_ray: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    """A head with one device, which is this machine, and hosts that a test adds."""
    from ray.cluster_utils import Cluster
    from ray.util import get_node_ip_address

    # Ray's command asks for a token where the user has one.
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    own = {"num_cpus": 1, "include_dashboard": False, "node_ip_address": get_node_ip_address()}
    with ExitStack() as stack:
        cluster = Cluster(initialize_head=True, head_node_args=own)
        stack.callback(cluster.shutdown)
        try:
            made = stack.enter_context(hosts(cluster.address))
        except OSError as error:
            pytest.skip(str(error))
        yield made


def start(sessions: Sessions, network: Hosts, *options: str, size: int = 32, **environment: str) -> Running:
    """A session on the head and its hosts, whose first two rows wait."""
    sessions.write("Moody", [row(size) for size in (*_WAITING, *range(200, 198 + size))])
    return sessions.start(
        f"--ray={network.address}", "--junitxml=out.xml", *options, alone=True, SIMULATED_DEVICES="1", **environment
    )


def wait_for_both(running: Running) -> None:
    """Until the head and a host have each begun with a row that waits."""
    for mood in _WAITING:
        running.wait_for_body(mood)


def rows_by_host(sessions: Sessions) -> Counter[str]:
    """How many rows each host ran, by the JUnit file of the session."""
    properties = ElementTree.parse(sessions.folder / "out.xml").iterfind(".//testcase/properties/property")
    return Counter(each.get("value", "") for each in properties if each.get("name") == "host")


def of_devices(network: Hosts) -> list[bytes]:
    """The actors, keepers and device processes of the host `far`."""
    commands = map(command_of, network.processes("far"))
    return [each for each in commands if b"opatlas/run/process" in each or b"Actor" in each]


def test_all_implementations_of_a_row_are_measured_on_one_host(sessions: Sessions, network: Hosts) -> None:
    (sessions.folder / "mine").mkdir()
    (sessions.folder / "mine" / "Moody.py").write_text("def kernel(x, y):\n    return x + y\n")
    network.add("far")
    running = start(sessions, network, "--implementation=torch,mine")
    wait_for_both(running)
    sessions.go()
    finished = running.wait()
    assert finished.ledger() == {"measured": 64}
    assert rows_by_host(sessions).keys() == {_HEAD, "far"}
    hosts: dict[str, set[str | None]] = {}
    for case in ElementTree.parse(sessions.folder / "out.xml").iter("testcase"):
        row_id = str(case.get("name")).rstrip("]").partition("-mine")[0].partition("~")[0]
        hosts.setdefault(row_id, set()).update(
            each.get("value") for each in case.iterfind("properties/property") if each.get("name") == "host"
        )
    assert len(hosts) == 32
    assert {len(found) for found in hosts.values()} == {1}
    assert left(sessions) == []


def test_a_host_whose_device_fails_its_probe_takes_no_row_and_is_reported(sessions: Sessions, network: Hosts) -> None:
    network.add("sick", SIMULATED_SICK="1")
    running = start(sessions, network)
    running.wait_until(lambda: "left out" in running.output.read_text())
    sessions.go()
    finished = running.wait()
    assert finished.ledger() == {"measured": 32}
    assert finished.has_line("left out", "of sick")
    assert set(rows_by_host(sessions)) == {_HEAD}
    assert left(sessions) == []


def test_a_host_with_another_kernel_takes_no_row_and_is_reported(sessions: Sessions, network: Hosts) -> None:
    for name in ("mine", "other"):
        (sessions.folder / name).mkdir()
        (sessions.folder / name / "Moody.py").write_text(f"def kernel(x, y):\n    return x + y  # {name}\n")
    mine, other = sessions.folder / "mine", sessions.folder / "other"
    network.add("elsewhere", "sh", "-c", f'mount --bind {other} {mine} && exec "$@"', "sh")
    running = start(sessions, network, "--implementation=mine")
    running.wait_until(lambda: "left out" in running.output.read_text())
    sessions.go()
    finished = running.wait()
    assert finished.ledger() == {"measured": 32}
    assert finished.has_line("left out", "of elsewhere")
    assert set(rows_by_host(sessions)) == {_HEAD}
    assert left(sessions) == []


def test_a_host_that_is_cut_off_costs_no_row(sessions: Sessions, network: Hosts) -> None:
    network.add("far")
    running = start(sessions, network, LONELY_S="30")
    wait_for_both(running)
    assert of_devices(network)
    network.cut("far")
    running.wait_until(lambda: "is lost" in running.output.read_text())
    sessions.go()
    finished = running.wait()
    assert finished.ledger() == {"measured": 32}
    assert finished.has_line("left out", "of far")
    assert set(sessions.statuses("Moody").values()) == {"measured"}
    # Nobody can ask a host that is cut off to end its processes.
    # Nobody can ask the processes on the host to end. Its raylet may wait for the head for many minutes.
    assert wait_for(lambda: not of_devices(network), seconds=120)
    assert left(sessions) == []
