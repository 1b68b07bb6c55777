"""The files of a site, without a browser: its rows, refusals, and that equal data give equal sites."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from captures import cells
from checked import write_manifest

import opatlas
from opatlas.ask.query.database import OpenDatabase
from opatlas.cli.main import main
from opatlas.data.csv_files import TEMPORARY_SUFFIX, write_text
from opatlas.show.site import pages, rows
from opatlas.show.site.pages import registered_pages
from opatlas.show.site.rows import columns_of, moves_each_byte_once, number_column, word_column
from tests.ask.tables import RUN, product_rows, write_table
from tests.outer.planted import capture, kernel
from tests.show.small_databases import COMPOSED, ENTITIES, FAILED, HOSTILE, SIZES

pytestmark = pytest.mark.filterwarnings("error")


def content(site: Path, name: str) -> Any:
    """Returns data as the browser reads them."""
    call = (site / "data" / f"{name}.js").read_text()
    receive, _, arguments = call.removesuffix(");\n").partition("(")
    assert receive == "opatlas.receive"
    own, text = json.loads(f"[{arguments}]")
    assert own == name
    return json.loads(text)


def opened(place: Path) -> OpenDatabase:
    return opatlas.open(place, compositions=True)


def row_table(database: OpenDatabase, kernel_type: str) -> pd.DataFrame:
    pages = registered_pages().values()
    more = {name: [page.row_cells(database, name) for page in pages] for name in database.implementations}
    return rows.row_table(database, kernel_type, more)


def test_rows_without_a_duration_have_sizes_and_reasons(database: Path) -> None:
    table = row_table(opened(database), "MatMulV2")
    assert len(table) == 2 * len(SIZES)
    failed = table[table["status"] == "failed"]
    assert (len(failed), set(failed["reason"]), set(failed["dtype"])) == (FAILED, {HOSTILE}, {"BF16"})
    assert failed["duration_us"].isna().all()
    assert [(m, k) for m, k in zip(failed["m"], failed["k"], strict=True)] == [(m, k) for m, _, k in SIZES[:FAILED]]
    assert (table["quality"] == "composition").sum() == COMPOSED
    assert dict(table["implementation"].value_counts()) == {"torch": len(SIZES), "flashinfer 0.5.3": len(SIZES)}


def test_noise_and_the_spread_of_machines_are_in_percent(tmp_path: Path) -> None:
    run = "20260101T000000-aaaaaa"
    pooled = {"Pooled Machines": "3", "Pooled Machine Spread(%)": "4.5", "Pooled Run Durations(us)": f"{run} 8"}
    write_table(tmp_path, "MatMulV2", product_rows([(1, 2, 3)], [8.0]).assign(**pooled))
    line = row_table(opened(tmp_path), "MatMulV2").iloc[0]
    assert (line["noise"], line["machine_spread"]) == (pytest.approx(1), pytest.approx(4.5))


def test_a_message_has_its_bus_bandwidth(database: Path) -> None:
    messages = opened(database).messages
    assert messages is not None
    table = row_table(messages, "hcom_allReduce_")
    first = table.iloc[0]
    assert first["bus_gbps"] == pytest.approx(first["message_bytes"] / first["duration_us"] / 1e3)


@pytest.mark.parametrize(("kernel_type", "expected"), [("MatMulV2", True), ("GatherV3", False)])
def test_a_roofline_is_for_kernels_that_move_each_byte_once(kernel_type: str, expected: bool, tmp_path: Path) -> None:
    write_table(tmp_path, kernel_type, product_rows([(1, 2, 3)], [1.0]))
    assert moves_each_byte_once(opened(tmp_path), kernel_type) is expected


def test_equal_rows_are_one(tmp_path: Path) -> None:
    write_table(tmp_path, "MatMulV2", product_rows([(1, 2, 3), (1, 2, 3)], [1.0, 9.0]))
    packed = columns_of(row_table(opened(tmp_path), "MatMulV2"))
    assert packed["rows"] == 1
    assert packed["columns"]["duration_us"]["numbers"] == [1]


def test_columns_are_short() -> None:
    assert number_column([1.0, 2.5, float("nan"), None, 1 / 3]) == {"numbers": [1, 2.5, None, None, 0.333333]}
    assert number_column([None, float("inf")]) is None
    assert word_column(["a", "a", "a", "b"]) == {"codes": [0, 0, 0, 1], "of": ["a", "b"]}
    assert word_column(["a", "b"]) == {"words": ["a", "b"]}
    assert word_column(["", ""]) is None


def test_a_command_writes_the_pages_that_are_asked_for(database: Path, tmp_path: Path) -> None:
    command = ["report", str(database), "--output", str(tmp_path / "site")]
    assert main(command) == 1  # For the CSV whose name is refused.
    overview = content(tmp_path / "site", "overview")
    assert [each["name"] for each in overview["types"]] == [ENTITIES, "MatMulV2", "hcom_allReduce_"]
    assert overview["pages"] == ["implementations"]
    assert content(tmp_path / "site", overview["types"][1]["file"])["rows"] == 2 * len(SIZES)
    first = {path: path.read_bytes() for path in (tmp_path / "site").rglob("*") if path.is_file()}
    assert main(command) == 1
    assert {path: path.read_bytes() for path in (tmp_path / "site").rglob("*") if path.is_file()} == first


def test_a_folder_with_other_files_is_unchanged(database: Path, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("mine")
    assert main(["report", str(database), "--output", str(tmp_path)]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]
    assert (tmp_path / "index.html").read_text() == "mine"


def test_the_step_of_a_model_is_that_of_the_query(whole_step: Path, tmp_path: Path) -> None:
    pages.write_site(whole_step, tmp_path / "site")
    overview = content(tmp_path / "site", "overview")
    cost = opatlas.open(whole_step).model("Qwen/Qwen3-0.6B", batch=64, context=4096)
    step = overview["step"]
    assert (step["model"], step["tp"], len(step["point"]["parts"])) == ("Qwen/Qwen3-0.6B", 1, len(cost.parts))
    assert step["point"]["us"] == pytest.approx(cost.us, abs=0.1)
    grid = content(tmp_path / "site", overview["models"][0]["file"])
    axes = grid["axes"]
    assert len(grid["points"]) == math.prod(map(len, axes.values()))
    # The step itself is on the grid; elsewhere some parts have no rows, and so there is no total.
    place = axes["context"].index(4096) * len(axes["batch"]) + axes["batch"].index(64)
    assert grid["points"][place]["us"] == step["point"]["us"]
    calls = grid["answers"]["columns"]["us_per_call"]["numbers"]
    for point in grid["points"]:
        lacks = any(calls[part] is None for part in point["parts"])
        assert (point["us"] is None, point["tokens_per_s"] is None) == (lacks, lacks)


@pytest.mark.parametrize("written", [0, 1, 3])
def test_a_site_whose_writing_ended_early_is_written_again(
    written: int, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, count = tmp_path / "site", 0

    def write(*arguments: Any) -> None:
        nonlocal count
        if count == written:
            # As a kill within a write leaves it.
            (site / "data").mkdir(parents=True, exist_ok=True)
            (site / "data" / f".overview.js.1{TEMPORARY_SUFFIX}").touch()
            raise KeyboardInterrupt
        count += 1
        write_text(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(pages, "write_text", write)
        with pytest.raises(KeyboardInterrupt):
            pages.write_site(database, site)
    pages.write_site(database, site)
    assert (site / "index.html").is_file()
    assert content(site, "overview")["types"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--step", "Qwen/Qwen3-32B,batch=8"], "context"),
        (["--step", "Qwen/Qwen3-32B,batch=8,context=4096,size=3"], "size=3"),
        (["--step", "Qwen/Qwen3-32B,batch=none,context=4096"], "batch=none"),
        (["--step", "qwen3-33b,batch=8,context=4096"], "error: qwen3-33b"),
        (["--step", "Qwen/Qwen3-32B,batch=8,context=4096,tp=7"], "error: tp 7"),
        (["--against", "nowhere"], "nowhere"),
    ],
)
def test_wrong_options_are_refused(
    arguments: list[str], named: str, database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(database), "--output", str(tmp_path / "site"), *arguments]) == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "site").exists()


def test_rows_have_verdicts_and_their_time_lost(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "NVIDIA_H200" / "torch" / "torch2.11.0_cuda13.0"
    # 2 x 4096^3 operations are 138.9 us at 989.5 T/s.
    products = product_rows([(4096, 4096, 4096), (8192, 2048, 4096), (2048, 8192, 4096)], [150.0, 300.0, 1.0])
    products.loc[2, "Status"] = "failed"
    write_table(folder, "MatMulV2", products)
    write_table(folder, "Sort", product_rows([(1, 2, 3)], [900.0]))
    assert main(["report", str(folder), "--output", str(tmp_path / "site")]) == 0
    page = content(tmp_path / "site", "overview")["diagnosis"]
    assert [(each["verdict"], each["rows"]) for each in page["verdicts"]] == [("at the roof", 1), ("below the roof", 1)]
    assert (page["known"], page["table"]["rows"]) == (2, 3)
    columns = page["table"]["columns"]
    # The row whose work is not known is ranked by its time.
    assert columns["duration_us"]["numbers"] == [900, 300, 150]
    assert columns["lost_us"]["numbers"] == [None, pytest.approx(161.1, abs=0.05), pytest.approx(11.1, abs=0.05)]
    assert columns["roofline"]["numbers"] == [None, pytest.approx(46.3, abs=0.05), pytest.approx(92.6, abs=0.05)]
    table = row_table(opened(folder), "MatMulV2")
    assert table["verdict"].fillna("").tolist() == ["at the roof", "below the roof", ""]


@pytest.mark.parametrize("device", ["Ascend910B3", "Ascend910Z9", ""])
def test_a_site_has_the_device_of_each_duration(device: str, tmp_path: Path) -> None:
    """Of a captured database with a replay of another device: the ranking is that of `diagnose`."""
    folder = tmp_path / "rows"
    often = kernel(20.0, "Small", **cells("7,8", "7,8"))
    path = capture(tmp_path, [*[often] * 9, kernel(100.0, "Large", **cells("5,8", "5,8"))])
    named = ["--device", device] if device else []
    assert main(["ingest", "--profiling-path", str(path), "--database-path", str(folder), *named]) == 0
    replayed = product_rows([(16, 64, 32)], [7_000.0]).assign(Implementation="torch 2.13.0")
    write_table(folder, "MatMulV2", replayed)
    write_manifest(folder, RUN, name="AMD_EPYC")
    assert main(["report", str(folder), "--output", str(tmp_path / "site")]) == 0
    overview = content(tmp_path / "site", "overview")
    named_device = device or "an unnamed NPU"
    (database,) = overview["databases"]
    assert database["device"] == named_device
    assert overview["figures"]["quiet"] is None
    assert sorted(database["durations"]) == [["captured", named_device, "", 2], ["replayed", "AMD_EPYC", "", 1]]
    ranking = overview["diagnosis"]["table"]["columns"]
    assert ranking["kernel_type"]["words"] == ["Small", "Large"]
    assert (ranking["launches"]["numbers"], ranking["time_us"]["numbers"]) == ([9, 1], [180, 100])
    tables = {each["name"]: content(tmp_path / "site", each["file"])["columns"] for each in overview["types"]}
    origins = {
        name: tuple(table[column]["words"][0] for column in ("origin", "device")) for name, table in tables.items()
    }
    captured = ("captured", named_device)
    assert origins == {"Small": captured, "Large": captured, "MatMulV2": ("replayed", "AMD_EPYC")}
    assert tables["Small"]["implementation"]["words"] == ["captured"]


@pytest.mark.parametrize("earlier", [True, False], ids=["a site", "nothing"])
def test_a_report_that_fails_leaves_the_folder_as_it_was(earlier: bool, database: Path, tmp_path: Path) -> None:
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    command = ["report", str(database), "--output", str(site)]
    if earlier:
        assert main(command) == 1  # For the CSV whose name is refused.
    before = {path: path.read_bytes() for path in site.rglob("*") if path.is_file()}
    assert main([*command, "--against", str(empty)]) in (1, 2)
    assert {path: path.read_bytes() for path in site.rglob("*") if path.is_file()} == before
    assert site.exists() is earlier
    assert main(command) == 1
    assert (site / "index.html").is_file()
