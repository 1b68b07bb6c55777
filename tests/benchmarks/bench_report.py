"""How long a browser takes until a page of `opatlas report` can be used, for 8,000 and 100,000 rows of a kernel type.

    python -m tests.benchmarks.bench_report [--rows N ...] [--rounds N]

The times begin with the navigation, in a fresh context of chromium without a cache, from the disk.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from opatlas.show.site.writer import write_site
from tests.ask.tables import product_rows, write_table
from tests.support.browser import chromium, missing

#: Milliseconds until the table of so many rows can be used.
TARGETS = {8_000: 1_000.0}
_MOST_MS = 120_000
_DRAWN = "() => document.querySelectorAll('.plot[data-drawn]').length === 2"
_READY = "() => Number(document.getElementById('main').dataset.ready)"


def _site(folder: Path, rows: int) -> Path:
    sizes = [(1 + i % 997, 64 * (1 + i // 997 % 97), 128 * (1 + i // (997 * 97))) for i in range(rows)]
    sizes = [(m, n, k + 128 * (m % 31)) for m, n, k in sizes]
    database = folder / f"database-{rows}"
    write_table(database, "MatMulV2", product_rows(sizes, [2 + 2 * m * n * k / 5e8 for m, n, k in sizes]))
    return write_site(database, folder / f"site-{rows}").start


def _times(browser: Any, start: Path) -> dict[str, float]:
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    page = context.new_page()
    page.set_default_timeout(_MOST_MS)
    page.goto(f"{start.as_uri()}#/type/MatMulV2")
    page.wait_for_function(_READY)
    found = {"table": float(page.evaluate(_READY))}
    page.wait_for_function(_DRAWN)
    found["plots"] = float(page.evaluate("() => performance.now()"))
    # Until the table is there and the browser has laid it out.
    measure = (
        "(act) => new Promise((done) => { const began = performance.now(); act();"
        " requestAnimationFrame(() => setTimeout(() => done(performance.now() - began))); })"
    )
    sort = "() => document.querySelector('[data-sort=duration_us]').click()"
    found["order"] = float(page.evaluate(f"() => ({measure})({sort})"))
    find = (
        "() => { const field = document.querySelector('.table input'); field.value = 'm>=100 n=640';"
        " field.dispatchEvent(new Event('input')); }"
    )
    status = page.evaluate("() => document.querySelector('.pager [role=status]').textContent")
    began = time.perf_counter()
    page.evaluate(find)
    page.wait_for_function(
        "(before) => document.querySelector('.pager [role=status]').textContent !== before", arg=status
    )
    found["filter"] = (time.perf_counter() - began) * 1e3
    context.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[8_000, 100_000], metavar="N")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    arguments = parser.parse_args()
    if why := missing():
        print(f"{why}; target: {TARGETS}")
        return 1
    failed = False
    with TemporaryDirectory() as folder, chromium() as browser:
        print(f"chromium {browser.version}, the median of {arguments.rounds} rounds, in ms")
        for rows in arguments.rows:
            began = time.perf_counter()
            start = _site(Path(folder), rows)
            written_s = time.perf_counter() - began
            rounds = [_times(browser, start) for _ in range(arguments.rounds)]
            figures = {name: median(each[name] for each in rounds) for name in rounds[0]}
            size_mb = sum(file.stat().st_size for file in start.parent.rglob("*") if file.is_file()) / 1e6
            target = TARGETS.get(rows)
            told = ", ".join(f"{name} {ms:,.0f}" for name, ms in figures.items())
            print(f"{rows:,} rows: {told}; written in {written_s:.1f} s, {size_mb:.1f} MB; target: {target or 'none'}")
            failed |= target is not None and figures["table"] > target
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
