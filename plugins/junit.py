"""JUnit: what CI servers show of a row, and what the run was.

Jenkins and GitLab show the class, the name, the time, the failure and `system-out` of a case, and none of its
properties. Rows are grouped by kernel type, have a line of numbers, and fail with their status as type.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, SubElement

import pytest
from _pytest.junitxml import xml_key

from opatlas.model.signature import case_id_in
from opatlas.report.figures import microseconds_text
from opatlas.text import real

from .journaling import manifest_of
from .report import ReportTally
from .session import BenchSession
from .writeback import WriteBack

if TYPE_CHECKING:
    from _pytest.junitxml import LogXML

#: pytest's own, where no ini option names the suite.
_UNNAMED = "pytest"


class JUnit:
    """Completes the file that pytest writes. Lives where it is written: never in a worker of xdist."""

    def __init__(self, session: BenchSession, written: WriteBack, tally: ReportTally, xml: LogXML) -> None:
        self._session = session
        self._written = written
        self._tally = tally
        self._xml = xml

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """After the last report, and before pytest writes the file."""
        plan = self._session.plan_if_made
        if plan is None or plan.error:
            return
        for name, value in self._about_the_run():
            self._xml.add_global_property(name, value)
        if self._xml.suite_name == _UNNAMED and self._written.device_name:
            self._xml.suite_name = f"opatlas {self._written.device_name}"
        kernel_types = {
            case_id: table.kernel_type for table in plan.tables.values() for case_id in table.cases.values()
        }
        for reporter in self._xml.node_reporters_ordered:
            case = reporter.to_xml()
            case_id = case_id_in(case.get("name", ""))
            if case_id in kernel_types:
                case.set("classname", ".".join(filter(None, (self._xml.prefix, kernel_types[case_id]))))
                self._complete(case, case_id)

    def _complete(self, case: Element, case_id: str) -> None:
        properties = {each.get("name"): each.get("value", "") for each in case.iter("property")}
        for failure in (*case.findall("failure"), *case.findall("error")):
            failure.set("type", properties.get("status", "error"))
        figures = self._tally.figures.get(case_id)
        # The figures are of the last run of a row; a plugin that runs rows again may leave a case of an earlier one.
        if figures is None or "duration_us" not in properties:
            return
        # With junit_logging there is one already, and readers look at the first alone.
        out = case.find("system-out")
        if out is None:
            out = SubElement(case, "system-out")
        line, stored_us = figures.line(), real(properties.get("stored_us", ""))
        if stored_us:
            ratio = float(properties["duration_us"]) / stored_us
            line += f", stored {microseconds_text(stored_us)} ({ratio:.2f} x)"
        out.text = "\n".join(filter(None, (line, out.text)))

    def _about_the_run(self) -> Iterator[tuple[str, str]]:
        manifest = manifest_of(self._session, self._written.devices)
        yield "run_id", manifest.run_id
        yield "database", str(self._session.settings.database)
        yield "host", manifest.host
        yield "python", manifest.python
        yield from manifest.packages.items()
        for number, device in enumerate((manifest.device, *manifest.other_devices), start=1):
            of_device = "device" if number == 1 else f"device_{number}"
            if device:
                yield of_device, str(device["name"])
                yield from ((f"{of_device}.{name}", str(value)) for name, value in device["facts"].items())
        for name, value in manifest.options.items():
            yield f"option.{name}", value if isinstance(value, str) else json.dumps(value, default=str)


def junit_of(config: pytest.Config) -> LogXML | None:
    """pytest's writer of JUnit files; None where no file is asked for. The one place that knows where it is."""
    return config.stash.get(xml_key, None)
