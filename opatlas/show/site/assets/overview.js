"use strict";
/* The overview: what the database is, how good, what is new in it, and its kernel types. */
(() => {
  const { element: h, number, t } = opatlas;
  const { typeLink, smallTable, facts, counted, section, problems } = opatlas.parts;

  function sums(database, what) {
    const counts = new Map();
    for (const type of database.kernel_types) for (const [word, count] of Object.entries(type[what])) counts.set(word, (counts.get(word) || 0) + count);
    return counts;
  }

  function overviewPage(overview) {
    const [first] = overview.databases;
    const known = h("datalist", { id: "types" }, ...overview.types.map((each) => h("option", { value: each.name })));
    const search = h("input", { type: "search", name: "row", list: "types", "aria-label": t("find a row by its name") });
    const find = h("form", { class: "controls", onsubmit: (event) => {
      event.preventDefault();
      const text = search.value.trim();
      if (text) location.hash = "#/row/" + encodeURIComponent(text);
    } }, h("label", {}, t("find a row by its name"), search), known, h("button", {}, t("open")));
    const rows = overview.types.map((each) => [
      h("a", { href: typeLink(each.name) }, each.name), number(each.rows), number(each.timed), coverage(each),
      number(each.median_us), each.dtypes.join(", "), counted(each.quality), counted(each.status), each.implementations.join(", "),
    ]);
    const titles = ["kernel type", "rows", "with a duration", "coverage", "median", "dtypes", "quality", "status", "implementation"]
      .map((title, i) => ({ title, number: [1, 2, 4].includes(i) }));
    Object.assign(titles[4], { title: "median duration", unit: "µs" });
    return [
      h("h1", {}, first.folder || first.device || first.path),
      factsOf(first),
      problems(overview.problems),
      section("kernel types", find, smallTable(titles, rows)),
      ...overview.databases.slice(1).map((each) => h("section", {}, h("h2", {}, each.folder || each.path), factsOf(each))),
      h("p", { class: "faint" }, `${t("written by")} OpAtlas ${overview.version}`),
    ];
  }

  const factsOf = (each) => facts([
    ["database", each.path], ["device", each.device],
    ["durations", each.durations.map(([origin, device, by, rows]) => `${number(rows)} ${t(origin)}: ${[device || t("unknown"), by].filter(Boolean).join(", ")}`).join("; ")],
    ["runs", [number(each.runs), Object.entries(each.devices).map(([name, runs]) => `${name} (${number(runs)})`).join("; ")].filter(Boolean).join(": ")],
    ["newest run", each.last_run_at ? new Date(each.last_run_at * 1000).toISOString().slice(0, 10) : ""],
    ["quality", counted(sums(each, "quality"))], ["status", counted(sums(each, "status"))], ["cache", counted(sums(each, "cache"))],
    ["instrument", counted(sums(each, "instrument"))], ["shipped", each.shipped],
    ["peaks", each.gbps ? `${number(each.gbps)} GB/s; ${Object.entries(each.tera_ops).map(([name, rate]) => `${name} ${number(rate)}`).join(", ")} (10¹²/s)` : t("not known")],
    ["rows by number of machines", [...sums(each, "machines")].map(([machines, rows]) => `${machines}: ${number(rows)}`).join(", ")],
  ]);

  const coverage = ({ rows, timed }) => {
    const share = rows ? Math.floor((timed / rows) * 100) : 0;
    return h("span", {}, h("span", { class: "bar", style: `width:${share * 0.6}px` }), ` ${share} %`);
  };

  opatlas.pages[""] = overviewPage;
})();
