"""The pages of `opatlas report` in a browser: their content, and that they load and run nothing else."""

from __future__ import annotations

import http.server
import json
import shlex
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import opatlas
from opatlas.cli.main import main
from opatlas.show.site.pages import write_site
from tests.ask.tables import product_rows, write_table
from tests.show.small_databases import COMPOSED, ENTITIES, FAILED, HOSTILE, SIZES

_READY = "(page) => document.getElementById('main').dataset.page === page"


class Visit:
    """A page of the site in a fresh context, and its errors."""

    def __init__(self, browser: Any, root: str, **context: Any) -> None:
        self.root = root
        self.context = browser.new_context(viewport={"width": 1400, "height": 1000}, **context)
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", self._said)
        self.page.on("dialog", self._dialog)
        self.page.on("request", self._request)

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(message.text)

    def _dialog(self, dialog: Any) -> None:
        self.wrong.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Any) -> None:
        if not request.url.startswith((self.root, "data:", "blob:")):
            self.wrong.append(request.url)

    def show(self, address: str) -> Any:
        self.page.goto(f"{self.root}/index.html{address}")
        self.page.wait_for_function(_READY, arg=address.partition("?")[0])
        return self.page

    def count_of_rows(self) -> int:
        """Returns how many rows match the filters."""
        text = self.page.locator(".pager [role=status]").inner_text()
        return int(text.partition(" (")[0].split()[-1].replace(",", ""))

    def column(self, title: str) -> list[str]:
        """Returns the cells of a column on the page."""
        titles = self.page.locator(".table th").all_inner_texts()
        number = next(i for i, each in enumerate(titles) if each.strip(" ▲▼") == title)
        return self.page.locator(f".table tbody td:nth-child({number + 1})").all_inner_texts()  # type: ignore[no-any-return]


@pytest.fixture
def visit(browser: Any, start: Path) -> Iterator[Callable[..., Visit]]:
    opened: list[Visit] = []

    def open_visit(root: str = start.parent.as_uri(), **context: Any) -> Visit:
        opened.append(Visit(browser, root, **{"locale": "en-US", **context}))
        return opened[-1]

    yield open_visit
    wrong = [each for one in opened for each in one.wrong]
    for one in opened:
        one.context.close()
    assert wrong == []


def test_the_overview_leads_to_each_kernel_type(visit: Callable[..., Visit]) -> None:
    page = visit().show("#/")
    assert page.locator("main h1").inner_text().startswith("NVIDIA_H200")
    links = page.locator("main table a").all_inner_texts()
    assert set(links) == {"MatMulV2", ENTITIES, "hcom_allReduce_"}
    page.click("text=MatMulV2")
    page.wait_for_function(_READY, arg="#/type/MatMulV2")
    assert page.locator("main h1").inner_text() == "MatMulV2"


def test_rows_are_sorted_filtered_and_paged(visit: Callable[..., Visit]) -> None:
    visited = visit()
    page = visited.show("#/type/MatMulV2")
    rows = 2 * len(SIZES)
    assert visited.count_of_rows() == rows
    assert page.locator(".table tbody tr").count() == 100
    for order, press in (("ascending", 1), ("descending", 2)):
        page.click("[data-sort=duration_us]")
        assert page.locator("th[aria-sort]:not([aria-sort=none])").get_attribute("aria-sort") == order
        durations = [float(cell.replace(",", "")) for cell in visited.column("duration (µs)") if cell]
        assert durations == sorted(durations, reverse=press == 2)
        assert len(durations) == 100
    page.click("text=next")
    assert page.locator(".table tbody tr").count() == 100
    page.locator("select[name=status]").select_option("failed")
    assert visited.count_of_rows() == FAILED
    assert visited.column("status") == ["failed"] * FAILED
    page.click("text=no filters")
    page.locator("select[name=quality]").select_option("composition")
    assert visited.count_of_rows() == COMPOSED
    page.click("text=no filters")
    page.locator("select[name=implementation]").select_option("flashinfer 0.5.3")
    assert visited.count_of_rows() == len(SIZES)
    page.fill(".table input", "m>=61 k=512 256,512")
    page.wait_for_function("() => document.querySelectorAll('.table tbody tr').length < 100")
    assert visited.count_of_rows() == 10


def test_plots_show_the_rows_that_match_over_the_size_that_is_picked(visit: Callable[..., Visit]) -> None:
    visited = visit()
    page = visited.show("#/type/MatMulV2")
    page.wait_for_function("() => document.querySelectorAll('.plot[data-drawn]').length === 2")
    timed = 2 * len(SIZES) - FAILED
    # A curve for each weight and implementation, and the roofline.
    assert page.locator(".legend button").count() == 4
    assert [plot.get_attribute("data-drawn") for plot in page.locator(".plot").all()] == [str(timed)] * 2
    page.click(".legend button >> nth=0")
    page.wait_for_function("() => document.querySelectorAll('.legend button').length === 1")
    assert len(SIZES) // 2 - FAILED <= visited.count_of_rows() <= len(SIZES) // 2
    page.click("text=no filters")
    page.locator("select[name=view]").select_option("single points")
    page.wait_for_selector("select[name=x]")
    # The site draws on canvases, which are inside of shadow roots.
    assert page.locator(".plot canvas").count() >= 2
    page.locator("select[name=x]").select_option("k")
    page.wait_for_function("() => document.querySelectorAll('.plot[data-drawn]').length === 2")
    assert "x=k" in page.url
    label = page.locator(".plot").first.get_attribute("aria-label")
    assert label == "MatMulV2: duration (µs), K"
    page.locator("select[name=status]").select_option("failed")
    page.wait_for_function(
        "() => [...document.querySelectorAll('.plot')].every((plot) => plot.style.display === 'none')"
    )


def test_a_link_shows_the_same_again(visit: Callable[..., Visit]) -> None:
    first = visit()
    page = first.show("#/type/MatMulV2")
    page.locator("select[name=implementation]").select_option("flashinfer 0.5.3")
    page.click("[data-sort=m]")
    page.click(".table tbody tr:nth-child(4) a")
    page.wait_for_selector("tr.chosen")
    chosen, address = page.locator("tr.chosen").inner_text(), page.url.partition("index.html")[2]
    second = visit()
    assert second.show(address).locator("tr.chosen").inner_text() == chosen
    assert second.count_of_rows() == len(SIZES)


def test_a_row_has_its_neighbours_the_prediction_through_it_and_the_command(
    visit: Callable[..., Visit], capsys: pytest.CaptureFixture[str]
) -> None:
    page = visit().show("#/type/MatMulV2?row=MatMulV2-64x512_256x512&by=torch")
    page.wait_for_selector("section.row .plot[data-drawn]")
    neighbours = page.locator("section.row table tbody tr td:first-child").all_inner_texts()
    assert neighbours == [str(m) for m in range(61, 68)]
    program, *words = shlex.split(page.locator("section.row code").inner_text())
    assert program == "opatlas"
    assert main([*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert f"{answer['duration_us']:.4g} µs" in page.locator(".headline").inner_text()
    assert answer["rows"][0]["case_id"] == page.locator("section.row h2 a").first.inner_text()
    page.click("section.row table a >> nth=0")
    page.wait_for_function("() => document.querySelector('section.row h2').innerText.startsWith('MatMulV2-61x')")


def test_names_and_cells_are_never_html(visit: Callable[..., Visit]) -> None:
    """The visit fails if a dialog opens or a request leaves."""
    visited = visit()
    page = visited.show("#/")
    assert HOSTILE in page.locator(".problem").first.inner_text()
    page = visited.show(f"#/type/{quote(ENTITIES, safe='')}")
    assert page.locator("main h1").inner_text() == ENTITIES
    page.wait_for_selector(".plot[data-drawn]")
    page.click(".table tbody a")
    page.wait_for_selector("section.row")
    assert HOSTILE in page.locator("section.row").inner_text()
    page = visited.show("#/type/MatMulV2?status=failed")
    page.click(".table tbody a")
    assert HOSTILE in page.locator("section.row").inner_text()
    visited.show(f"#/row/{quote('<svg onload=alert(2)>', safe='')}")
    assert page.locator("main img, main svg").count() == 0


def test_implementations_and_databases_are_side_by_side(visit: Callable[..., Visit]) -> None:
    visited = visit()
    page = visited.show("#/implementations")
    assert page.locator("main summary").count() == 1
    page.locator("select[name=verdict]").select_option("FAST")
    ratios = [float(cell) for cell in visited.column("speed-up")]
    assert ratios == pytest.approx([2.0] * len(ratios), rel=0.01)
    page.click(".table tbody a")
    page.wait_for_selector("section.row")
    page = visited.show("#/databases")
    page.wait_for_selector(".plot[data-drawn]")
    assert set(visited.column("verdict")) <= {"FAST", "SAME", "NOT COMPARABLE", "AMBIGUOUS", ""}


def test_collectives_and_models(visit: Callable[..., Visit]) -> None:
    visited = visit()
    page = visited.show("#/collectives")
    # The bandwidth and the duration of ten messages.
    page.wait_for_function("() => document.querySelectorAll('.plot[data-drawn=\"10\"]').length === 2")
    page = visited.show("#/models")
    # Only products have rows: their blocks are there, a total is not.
    page.wait_for_selector(".timeline")
    assert page.locator("main h1").inner_text() == "Qwen/Qwen3-32B"
    blocks = page.locator(".timeline .block").count()
    assert 0 < page.locator(".timeline .lacks").count() < blocks
    assert "RmsNorm" in page.locator("main").inner_text()
    assert page.locator(".headline").inner_text() == "no total"
    page.locator("input[name=batch]").fill("0")
    page.wait_for_function("() => location.hash.includes('batch=1&')")
    page.locator("select[name=stack]").select_option("torch")
    assert "stack=torch" in page.url
    address = page.url.partition("index.html")[2]
    again = visit().show(address)
    again.wait_for_selector(".timeline")
    assert again.locator("output").all_inner_texts() == page.locator("output").all_inner_texts()


def test_a_step_of_which_all_is_known_has_a_total(
    visit: Callable[..., Visit], whole_step: Path, tmp_path: Path
) -> None:
    write_site(whole_step, tmp_path / "site")
    page = visit((tmp_path / "site").as_uri()).show("#/")
    cost = opatlas.open(whole_step).model("Qwen/Qwen3-0.6B", batch=64, context=4096)
    assert page.locator(".headline").inner_text().startswith(f"{cost.us / 1e3:.3g} ms")
    assert page.locator(".timeline .block").count() == len(cost.parts)
    page.click("main section p a >> nth=0")
    page.wait_for_function(_READY, arg="#/models")
    page.wait_for_selector(".headline")
    assert page.locator(".headline").inner_text().startswith(f"{cost.us / 1e3:.3g} ms")
    page.locator("input[name=tp]").fill("1")
    page.wait_for_function("() => location.hash.includes('tp=2')")
    assert page.locator(".headline").inner_text() == "no total"


def test_speed_ups_are_a_heat_map(visit: Callable[..., Visit]) -> None:
    page = visit().show("#/implementations")
    page.click(".heatmap a >> nth=0")
    page.wait_for_selector(".heatmap >> nth=1")
    maps = page.locator(".heatmap")
    assert maps.nth(0).locator("td").all_inner_texts() == ["2.00"]
    assert maps.nth(1).locator("tbody th").count() == 2
    assert {text for text in maps.nth(1).locator("td").all_inner_texts() if text} == {"2.00"}


def test_languages_and_colours_follow_the_reader(visit: Callable[..., Visit]) -> None:
    visited = visit(locale="zh-CN", color_scheme="dark")
    page = visited.show("#/type/MatMulV2")
    assert page.locator("html").get_attribute("lang") == "zh-CN"
    back = "() => getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(back)
    words = [*page.locator(".table th").all_inner_texts(), *page.locator("main label").all_inner_texts()]
    words += page.locator("header a").all_inner_texts()
    untold = [word for word in words if word and not any("\u4e00" <= letter <= "\u9fff" for letter in word)]
    assert [word for word in untold if word not in ("M", "N", "K")] == []
    page.locator("select[name=theme]").select_option("light")
    assert page.evaluate(back) != dark
    page.locator("select[name=language]").select_option("en")
    page.wait_for_function("() => document.documentElement.lang === 'en'")
    assert "overview" in page.locator("header").inner_text()


def test_a_web_server_serves_the_same(visit: Callable[..., Visit], start: Path) -> None:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
            """Leaves stderr to the tests."""

    handler = partial(Quiet, directory=str(start.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            page = visit(f"http://127.0.0.1:{server.server_port}").show("#/type/MatMulV2")
            page.wait_for_function("() => document.querySelectorAll('.plot[data-drawn]').length === 2")
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site whose cells are names that every object of JavaScript has."""
    root = tmp_path_factory.mktemp("odd")
    rows = product_rows([(m, 64, 64) for m in range(1, 6)], [1.0, 2.0, 3.0, 4.0, 5.0])
    names = ["constructor", "toString", "__proto__", "hasOwnProperty", "valueOf"]
    for column in ("Status", "Quality", "Cache State", "Instrument", "Implementation", "Input Formats"):
        rows[column] = names
    for column in ("Input Data Types", "Output Data Types"):
        rows.loc[:2, column] = names[:3]
    for kernel_type in ("MatMulV2", "constructor", "toString"):
        write_table(root / "db", kernel_type, rows)
    return write_site(root / "db", root / "site").start


@pytest.mark.parametrize(
    "address",
    [
        *("#/", "#/diagnosis", "#/type/constructor", "#/type/__proto__", "#/__proto__", "#/row/%E0%A4%A"),
        *("#/type/MatMulV2?sort=-constructor&q=toString%3E1+__proto__=2", "#/type/MatMulV2?status=constructor"),
        "#/type/MatMulV2?x=__proto__&y=constructor&colour=toString&row=constructor",
    ],
)
def test_names_of_javascripts_own_break_no_page(address: str, visit: Callable[..., Visit], odd: Path) -> None:
    page = visit(odd.parent.as_uri()).show(address)
    text = page.locator("main").inner_text()
    assert "Error" not in text
    assert "function" not in text
    if address == "#/":
        assert all(name in text for name in ("constructor 1", "toString 1", "__proto__ 1"))
    elif address.endswith("status=constructor"):
        assert page.locator(".table tbody tr").count() == 1


def test_the_diagnosis_ranks_rows_by_time_lost_and_gives_advice(visit: Callable[..., Visit]) -> None:
    visited = visit(locale="zh-CN")
    page = visited.show("#/diagnosis")
    names, counts = (page.locator(f"main section:first-of-type td:nth-child({i})").all_inner_texts() for i in (1, 2))
    verdicts = dict(zip(names, counts, strict=True))
    assert int(verdicts["低于 Roofline"].replace(",", "")) > 0
    lost = [float(cell.replace(",", "")) for cell in visited.column("损失时间 (µs)")]
    assert lost == sorted(lost, reverse=True)
    assert all(0 < float(cell) < 100 for cell in visited.column("Roofline 占比 (%)"))
    page.locator("select[name=verdict]").select_option("below the roof")
    assert visited.count_of_rows() > 0
    page.click(".table tbody a >> nth=0")
    page.wait_for_selector("section.row .advice")
    assert "增加并发" in page.locator("section.row .advice").inner_text()
