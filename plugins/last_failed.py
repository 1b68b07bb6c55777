"""--lf and --ff: rows that are xfail count as failed, and each database has failures of its own."""

from __future__ import annotations

from collections.abc import Generator, MutableMapping
from typing import Any

import pytest

from opatlas.errors import OpAtlasError

from .collector import about_row, outcome_of_report
from .session import BenchSession
from .xdist import replays_are_asked_for

_KEY = "opatlas/lastfailed"


class LastFailed:
    """Adds to what pytest's cache keeps of the last failures: which database each row failed in.

    pytest keeps one list of node ids for all sessions of a root folder. Ids of rows that failed in other databases are
    taken off the list while a session runs, and put back at its end.
    """

    def __init__(self, session: BenchSession, config: pytest.Config) -> None:
        self._session = session
        self._config = config
        self._database = ""
        #: Node ids of rows that failed in each database, by its path.
        self._by_database: dict[str, list[str]] = {}
        #: What pytest calls the ids of its list, by their text.
        self._keys: dict[str, Any] = {}
        self._reported: set[str] = set()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> Generator[None, None, object]:
        failed = self._failed()
        if failed is not None and replays_are_asked_for(session.config):
            try:
                self._database = str(self._session.settings.database)
            except (OpAtlasError, pytest.UsageError):  # the plan, which cannot be made either, tells why
                return (yield)
            self._by_database = dict(self._cache.get(_KEY, {}))
            self._keys = {str(key): key for key in failed}
            for nodeid in self._of_others().difference(self._by_database.get(self._database, ())):
                failed.pop(self._keys.get(nodeid), None)
        return (yield)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """After pytest, which takes a row that is xfail off its list."""
        about, failed = about_row(report), self._failed()
        if about is None or failed is None:
            return
        self._reported.add(report.nodeid)
        if outcome_of_report(report) == "xfailed" and "record" in about:
            # Since pytest 9.2 the keys are no text.
            failed[getattr(report, "id", report.nodeid)] = True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Before pytest writes its list."""
        failed = self._failed()
        if failed is None or not self._database or self._session.is_worker:
            return
        rows = self._reported.union(self._by_database.get(self._database, ()))
        now = {**self._by_database, self._database: sorted(rows.intersection(map(str, failed)))}
        if now[self._database] != self._by_database.get(self._database, []):
            self._cache.set(_KEY, now)
        failed.update((self._keys[nodeid], True) for nodeid in self._of_others().intersection(self._keys))

    def _of_others(self) -> set[str]:
        """Ids of rows that failed in other databases."""
        return {nodeid for path, nodeids in self._by_database.items() if path != self._database for nodeid in nodeids}

    def _failed(self) -> MutableMapping[Any, bool] | None:
        """pytest's list; None where its cache is switched off."""
        plugin = self._config.pluginmanager.get_plugin("lfplugin")
        return None if plugin is None else plugin.lastfailed

    @property
    def _cache(self) -> pytest.Cache:
        assert self._config.cache is not None
        return self._config.cache
