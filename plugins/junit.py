"""The JUnit file: completes the cases of rows that pytest writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from xml.etree.ElementTree import Element, SubElement

import pytest

from opatlas import formats
from opatlas.row.signature import case_id_in
from opatlas.text import parse_real

from .cases import CaseResult, Fate, of_fate
from .pytest_internals import LogXML, xml_key
from .session import Session

#: pytest's name of the suite if no ini option names it.
_DEFAULT_SUITE = "pytest"


class JUnit:
    """Completes the JUnit file that pytest writes in the main process.

    Jenkins and GitLab show class, name, time, failure and `system-out` of a case, but no properties. So rows are
    grouped by kernel type, have a line of numbers, and fail with their status as type.
    """

    def __init__(self, session: Session, xml: LogXML) -> None:
        self._session = session
        self._context = session.context
        self._records = session.records
        self._xml = xml

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Completes the cases after the last report, before pytest writes the file."""
        plan = self._context.plan
        if plan is None or plan.error:
            return
        for name, value in self._run_properties():
            self._xml.add_global_property(name, value)
        if self._xml.suite_name == _DEFAULT_SUITE and self._records.device_name:
            self._xml.suite_name = f"opatlas {self._records.device_name}"
        rows = {row.id: row for row in of_fate(self._session.cases, Fate.TO_RUN)}
        for reporter in self._xml.node_reporters_ordered:
            case = reporter.to_xml()
            row = rows.get(case_id_in(case.get("name", "")))
            if row is not None:
                case.set("classname", ".".join(filter(None, (self._xml.prefix, row.kernel_type))))
                self._complete(case, row.result)

    def _complete(self, case: Element, result: CaseResult | None) -> None:
        properties = {each.get("name"): each.get("value", "") for each in case.iter("property")}
        for failure in (*case.findall("failure"), *case.findall("error")):
            failure.set("type", properties.get("status", "error"))
        figures = result.figures if result is not None else None
        # The figures are of the last run of a row. A plugin that runs rows again may leave a case of an earlier run.
        if figures is None or "duration_us" not in properties:
            return
        # junit_logging makes a system-out too, and readers use only the first.
        out = case.find("system-out")
        if out is None:
            out = SubElement(case, "system-out")
        line, stored_us = figures.line(), parse_real(properties.get("stored_us", ""))
        if stored_us:
            factor = formats.ratio(float(properties["duration_us"]) / stored_us)
            line += f", stored {formats.duration(stored_us)} ({factor})"
        out.text = "\n".join(filter(None, (line, out.text)))

    def _run_properties(self) -> Iterator[tuple[str, str]]:
        manifest = self._context.manifest(self._records.devices)
        yield "run_id", manifest.run_id
        yield "database", str(self._context.settings.database)
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


def junit_writer(config: pytest.Config) -> LogXML | None:
    """Returns pytest's writer of JUnit files; None without --junit-xml."""
    return config.stash.get(xml_key, None)
