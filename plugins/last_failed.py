"""--lf and --ff: keeps the failed rows of each database apart."""

from __future__ import annotations

from collections.abc import Generator, MutableMapping
from typing import Any

import pytest

from opatlas.errors import OpAtlasError

from .row_note import note_of, outcome_of_report
from .session_context import SessionContext
from .xdist import has_replays

_KEY = "opatlas/lastfailed"


class LastFailed:
    """Makes --lf and --ff count failures for each database, and count rows that are xfail as failed.

    pytest's cache has one list of node ids for all sessions of a root folder. The ids of rows that failed in other
    databases are removed from the list while a session runs, and put back at its end.
    """

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._config = context.config
        self._database = ""
        #: Node ids of rows that failed in each database, by its path.
        self._by_database: dict[str, list[str]] = {}
        #: The keys of pytest's list, by their text.
        self._keys: dict[str, Any] = {}
        self._reported: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self, session: pytest.Session) -> Generator[None, None, object]:
        failed = self._failed()
        if failed is not None and has_replays(session.config):
            try:
                self._database = str(self._context.settings.database)
            except (OpAtlasError, pytest.UsageError):  # the plan fails with the same error, and reports it
                return (yield)
            self._by_database = dict(self._cache.get(_KEY, {}))
            self._keys = {str(key): key for key in failed}
            for nodeid in self._failed_elsewhere().difference(self._by_database.get(self._database, ())):
                failed.pop(self._keys.get(nodeid), None)
        return (yield)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds a row that is xfail, after pytest removed it from its list."""
        note, failed = note_of(report), self._failed()
        if note is None or failed is None:
            return
        self._reported.add(report.nodeid)
        if outcome_of_report(report) == "xfailed" and "record" in note:
            # Since pytest 9.2 the keys are not text.
            failed[getattr(report, "id", report.nodeid)] = True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Puts back the ids of other databases, before pytest writes its list."""
        failed = self._failed()
        if failed is None or not self._database or self._context.is_worker:
            return
        rows = self._reported.union(self._by_database.get(self._database, ()))
        now = {**self._by_database, self._database: sorted(rows.intersection(map(str, failed)))}
        if now[self._database] != self._by_database.get(self._database, []):
            self._cache.set(_KEY, now)
        failed.update((self._keys[nodeid], True) for nodeid in self._failed_elsewhere().intersection(self._keys))

    def _failed_elsewhere(self) -> set[str]:
        """Returns the ids of rows that failed in other databases."""
        return {nodeid for path, nodeids in self._by_database.items() if path != self._database for nodeid in nodeids}

    def _failed(self) -> MutableMapping[Any, bool] | None:
        """Returns pytest's list; None where its cache is switched off."""
        plugin = self._config.pluginmanager.get_plugin("lfplugin")
        return None if plugin is None else plugin.lastfailed

    @property
    def _cache(self) -> pytest.Cache:
        assert self._config.cache is not None
        return self._config.cache
