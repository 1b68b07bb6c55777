"use strict";
/* A kernel type: its rows as a table, the chosen one, and plots of them. */
(() => {
  const { element: h, number, t } = opatlas;
  const { SIZES, rowLink, counted, section } = opatlas.parts;

  /* Columns of rows: title, unit, and how they are shown. Sizes are those that opatlas.query types. */
  const ROW_COLUMNS = [
    { name: "input_shapes", title: "input shapes", long: true }, { name: "message_bytes", title: "bytes of the message" }, { name: "duration_us", title: "duration", unit: "µs" }, { name: "interval", title: "90 % interval, ±", unit: "%", digits: 2 },
    { name: "dtype", title: "dtype" }, { name: "implementation", title: "implementation" },
    { name: "tflops", title: "arithmetic rate", unit: "10¹²/s" }, { name: "gbps", title: "bandwidth", unit: "GB/s" },
    { name: "bus_gbps", title: "bus bandwidth", unit: "GB/s" }, { name: "roofline", title: "roofline share", unit: "%" },
    { name: "quality", title: "quality" }, { name: "status", title: "status" }, { name: "verdict", title: "verdict" },
    { name: "lost_us", title: "time lost", unit: "µs" }, { name: "noise", title: "noise", unit: "%" }, { name: "samples", title: "samples" },
    { name: "launches", title: "launches" }, { name: "format", title: "format" }, { name: "origin", title: "source" }, { name: "device", title: "device" },
  ];
  /* Sizes stand before this column. */
  const SIZES_AT = 4;
  const DETAILS = [
    { name: "output_shapes", title: "output shapes" }, { name: "reason", title: "reason" }, { name: "composed", title: "composition of operators" },
    { name: "run_id", title: "run" }, { name: "cache", title: "cache" }, { name: "instrument", title: "instrument" },
    { name: "median_us", title: "median duration", unit: "µs" }, { name: "std_us", title: "standard deviation", unit: "µs" }, { name: "machines", title: "machines" },
    { name: "machine_spread", title: "spread of the machines", unit: "%" }, { name: "time_us", title: "time of all launches", unit: "µs" },
  ];
  const FILTERS = ["implementation", "dtype", "format", "status", "quality", "verdict", "composed", "origin", "device", "cache", "instrument"]
    .map((name) => [...ROW_COLUMNS, ...DETAILS].find((each) => each.name === name));
  /* Other columns of numbers are sizes. */
  const NO_SIZES = new Set([...ROW_COLUMNS, ...DETAILS].map((each) => each.name).concat("id", "curve", "varies"));
  opatlas.sizesOf = (columns) => columns.names.filter((each) => !NO_SIZES.has(each));

  async function typePage(overview, name, state) {
    const type = overview.types.find((each) => each.name === name);
    if (!type) return [h("h1", {}, name), h("p", {}, t("there is no such page"))];
    const columns = new opatlas.Columns(await opatlas.load(type.file)), several = type.implementations.length > 1;
    const sizes = opatlas.sizesOf(columns).map((each) => ({ name: each, title: SIZES[each] || each }));
    const names = [...ROW_COLUMNS, ...sizes, ...DETAILS];
    const by = (row) => several ? columns.get("implementation", row) : "", linkOf = (row) => rowLink(name, columns.get("id", row), by(row));
    // What all rows have in common is told once.
    const common = names.filter((each) => columns.common(each.name) !== null);
    const shown = [...ROW_COLUMNS.slice(0, SIZES_AT), ...sizes, ...ROW_COLUMNS.slice(SIZES_AT)]
      .filter((each) => columns.has(each.name) && (!common.includes(each) || each.name === "duration_us"));
    if (!["input_shapes", "message_bytes"].includes(shown[0].name)) shown.unshift({ name: "id", title: "row", long: true });
    shown[0] = { ...shown[0], link: linkOf, press: (row) => open(row), tip: (row) => columns.get("id", row) };
    const detail = h("div"), plots = h("div");
    let table;
    const open = (row) => {
      state.set("row", columns.get("id", row));
      if (several) state.set("by", by(row));
      opatlas.keep(state);
      choose(row);
      detail.scrollIntoView({ block: "start" });
    };
    const close = () => { state.delete("row"); state.delete("by"); opatlas.keep(state); table.choose(-1); detail.replaceChildren(); };
    const choose = (row) => {
      table.choose(row);
      detail.replaceChildren(opatlas.rowSection({ overview, type, columns, row, names, link: linkOf(row), open, close }));
    };
    table = new opatlas.Table({ columns, shown, filters: FILTERS, searched: ["id", "input_shapes", "output_shapes"], state,
      changed: (rows, others) => { opatlas.keep(state); if (others) draw(rows); } });
    const wanted = state.get("row");
    if (wanted) {
      const found = rowsNamed(columns, wanted, state.get("by"));
      if (found.length) choose(found[0]);
      else detail.replaceChildren(h("p", { class: "problem" }, `${t("no row has this name")}: ${wanted}`));
    }
    const draw = opatlas.typePlots({ place: plots, columns, type, overview, state, open, choose: (words) => table.search(words) });
    // The table is there before the plots are drawn.
    setTimeout(() => draw(table.rows), 0);
    const told = common.filter((each) => !["run_id", "id", "composed", "status", "duration_us"].includes(each.name)).map((each) => [each, columns.common(each.name)]).filter(([, value]) => value !== "")
      .map(([{ title, unit }, value]) => `${t(title)} ${typeof value === "number" ? number(value) + (unit ? " " + unit : "") : t(value)}`);
    return [
      h("h1", {}, name),
      h("p", { class: "faint" }, `${t("rows")}: ${number(type.rows)}; ${t("with a duration")}: ${number(type.timed)}; ${counted(type.status)}`),
      type.rows > 1 && told.length ? h("p", { class: "faint" }, `${t("all rows")}: ${told.join(", ")}`) : null,
      detail, plots, section("table", table.element),
    ];
  }

  /** Returns the rows with an id, or else those whose ids begin with it. */
  function rowsNamed(columns, name, by) {
    const rows = Array.from({ length: columns.length }, (_, row) => row)
      .filter((row) => columns.get("id", row).startsWith(name) && (!by || columns.get("implementation", row) === by));
    const same = rows.filter((row) => columns.get("id", row) === name);
    return same.length ? same : rows;
  }

  opatlas.pages.type = typePage;
})();
