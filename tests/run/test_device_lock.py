"""The lock of a device: its holder is named, forks do not hold it, and a wait ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from opatlas.errors import OpAtlasError
from opatlas.row.errors import DeviceGone
from opatlas.run.devices import device_lock
from opatlas.run.devices.device_lock import DeviceLock, DeviceWaits, LockHolder, announce_session


def nothing(*_: object) -> None:
    pass


@contextmanager
def held_elsewhere(path: Path, *, in_fork: bool = False) -> Iterator[int]:
    """Another session holds the lock, or has held it and left a fork behind; gives the pid of its process."""
    ready, report = os.pipe()
    pid = os.fork()
    if pid == 0:
        announce_session("another", "pytest another")
        with DeviceLock(path).held(nothing, nothing):
            if not in_fork or os.fork() == 0:
                os.setsid()
                os.write(report, str(os.getpid()).encode())
                signal.pause()
            else:
                os._exit(0)
        os._exit(0)
    left = int(os.read(ready, 20))
    if in_fork:
        os.waitpid(pid, 0)
    try:
        yield left
    finally:
        os.kill(left, signal.SIGKILL)
        if not in_fork:
            os.waitpid(pid, 0)


def test_a_waiter_learns_the_device_and_its_holder_and_gives_up(tmp_path: Path) -> None:
    holders: list[LockHolder] = []
    path = tmp_path / "lock"
    with held_elsewhere(path) as pid:
        with pytest.raises(DeviceGone) as error, DeviceLock(path).held(holders.append, nothing, 0.0):
            pass
        for text in (holders[0].name, str(error.value)):
            assert str(pid) in text
            assert "pytest another" in text
        assert not holders[0].own_session
    with DeviceLock(path).held(holders.append, nothing, 0.0):
        assert len(holders) == 1


def test_forks_of_a_holder_do_not_hold_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with held_elsewhere(path, in_fork=True), DeviceLock(path).held(nothing, nothing, 0.0):
        pass


def test_text_of_others_in_the_file_is_made_printable(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holders: list[LockHolder] = []
    with held_elsewhere(path):
        path.write_bytes(b"\x1b[2J\xff" * 1000)
        with pytest.raises(DeviceGone), DeviceLock(path).held(holders.append, nothing, 0.0):
            pass
    assert str(holders[0]).isprintable()
    assert len(str(holders[0])) < 5000


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_something_else_in_its_place_is_an_error_that_names_it(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "lock"
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        os.mkfifo(path)
    with pytest.raises(OpAtlasError, match="TMPDIR") as error:
        DeviceLock(path)
    assert str(path) in str(error.value)
    assert not (tmp_path / "elsewhere").exists()


def test_the_lock_of_another_user_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock"
    path.touch()
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.raises(OpAtlasError):
        DeviceLock(path)


OTHER = LockHolder("session A")
OWN = LockHolder("session B", own_session=True)


def test_another_worker_of_the_same_session_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, holders = tmp_path / "lock", []
    monkeypatch.setenv(device_lock.SESSION_VARIABLE, "")
    announce_session("another", "pytest another")
    with held_elsewhere(path), pytest.raises(DeviceGone), DeviceLock(path).held(holders.append, nothing, 0.0):
        pass
    assert holders[0].own_session


def test_a_wait_is_reported_once_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    waits = DeviceWaits(messages.append)
    wait = waits.begin(OTHER)
    waits.begin(OTHER)
    assert len(messages) == 1
    assert OTHER.name in messages[0]
    assert wait.left_s() > 0
    monkeypatch.setattr(device_lock, "LONGEST_WAIT_S", 0.0)
    with pytest.raises(DeviceGone):
        wait.left_s()


def test_a_job_that_ends_in_its_wait_was_interrupted() -> None:
    messages: list[str] = []
    waits = DeviceWaits(messages.append)
    with waits:
        waits.end(waits.begin(OWN))
    assert not waits.interrupted
    with waits:
        waits.begin(OWN)
    assert waits.interrupted
    assert messages == []
