"use strict";
/* Implementations, and databases, side by side. */
(() => {
  const { element: h, number, t } = opatlas;
  const { typeLink, rowLink, smallTable, facts, counted, section, problems, rangeOf } = opatlas.parts;

  async function comparisonPage(overview, name, state) {
    if (!overview.pages.includes(name)) return [h("h1", {}, t("there is no such page"))];
    const found = await opatlas.load(name), columns = new opatlas.Columns(found.table);
    const types = new Set(overview.types.map((each) => each.name));
    const linked = (type) => types.has(type) ? h("a", { href: typeLink(type) }, type) : type;
    const ratio = (value) => value === null ? "" : `${value >= 0.1 && value < 100 ? value.toFixed(2) : number(value)}×`;
    const titles = ["kernel type", "rows", "measured", "failed", "unsupported", "missing", "covered", "deployed", "verdict"]
      .map((title, i) => ({ title, number: i > 0 && i < 8 }));
    const line = (each, label) => [label, number(each.rows), number(each.measured), number(each.wrong + each.crashed), number(each.unsupported),
      number(each.missing), ratio(each.covered), ratio(each.deployed), counted(each.verdicts)];
    const shown = [{ name: "id", title: "row", long: true, link: (row) => types.has(columns.get("kernel_type", row))
      ? rowLink(columns.get("kernel_type", row), columns.get("id", row)) : null },
      { name: "kernel_type", title: "kernel type" }, { name: "rival", title: "rival" },
      { name: "baseline_us", title: "baseline", unit: "µs" }, { name: "rival_us", title: "rival", unit: "µs" },
      { name: "speed_up", title: "speed-up" }, { name: "verdict", title: "verdict", tone: true },
      { name: "baseline_status", title: "baseline's status" }, { name: "status", title: "status" }, { name: "reason", title: "reason", long: true }];
    if (!state.has("sort")) state.set("sort", "speed_up");
    const place = h("div"), [shortest, longest] = rangeOf(columns.length, (row) => columns.get("baseline_us", row));
    const tones = opatlas.colours(columns.counts("verdict").map(([word]) => word));
    const scatter = new opatlas.Scatter({ place, xTitle: `${t("baseline")} (µs)`, yTitle: t("speed-up"), describe: t("rows side by side"),
      lines: longest > 0 ? [{ x: [shortest, longest], y: [1, 1], at: [longest, 1], label: "1×" }] : [],
      open: (row) => { location.hash = rowLink(columns.get("kernel_type", row), columns.get("id", row)); },
      tips: [[t("row"), (row) => columns.get("id", row)], [t("rival"), (row) => columns.get("rival", row)], [t("speed-up"), (row) => number(columns.get("speed_up", row))]] });
    const draw = (rows) => scatter.draw(rows.map((row) => ({ x: columns.get("baseline_us", row), y: columns.get("speed_up", row),
      colour: tones.get(columns.get("verdict", row)), row })));
    const table = new opatlas.Table({ columns, shown, searched: ["id", "kernel_type", "reason"], state,
      filters: ["rival", "kernel_type", "verdict", "baseline_status", "status"].map((each) => ({ name: each, title: shown.find((own) => own.name === each).title })),
      changed: (rows, others) => { opatlas.keep(state); if (others) draw(rows); } });
    setTimeout(() => draw(table.rows), 0);
    const hrefOf = (type) => `#/${name}?kernel_type=${encodeURIComponent(type)}`, wanted = state.get("kernel_type") || "";
    const type = overview.types.find((each) => each.name === wanted), overall = opatlas.typeHeatmap(found, hrefOf);
    const maps = type ? opatlas.shapeHeatmaps(columns, new opatlas.Columns(await opatlas.load(type.file)), type, wanted) : [];
    return [
      h("h1", {}, t(name === "implementations" ? "implementations" : "comparison")),
      facts([["baseline", `${found.baseline.label}: ${found.baseline.path}`], ["fastest", counted(Object.fromEntries(
        Object.entries(found.fastest).map(([word, count]) => [word || "open", count])))]]),
      problems(found.problems),
      overall ? section("speed-ups by kernel type", overall, opatlas.heatLegend()) : null,
      wanted && maps.length ? section(`${wanted}`, ...maps) : null,
      ...found.rivals.map((rival) => h("details", {}, h("summary", {}, `${rival.label}: ${number(rival.all.measured)} ${t("measured")}`), h("p", { class: "faint" }, rival.path),
        smallTable(titles, [line(rival.all, t("total")), ...rival.kernel_types.filter((each) => each.measured + each.wrong + each.crashed + each.unsupported).map((each) => line(each, linked(each.kernel_type)))]))),
      h("p", { class: "faint" }, t("covered: geometric mean of the speed-ups over rows that are FAST, SLOW or SAME; deployed: with 1 for rows that the rival did not measure")),
      section("rows side by side", opatlas.legend(tones) || "", place, table.element),
    ];
  }

  opatlas.pages.implementations = opatlas.pages.databases = comparisonPage;
})();
