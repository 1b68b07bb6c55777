"use strict";
/* A row: its duration, what asks for it, the prediction through it, its neighbours, its history, and all its cells. */
(() => {
  const { element: h, number, t } = opatlas;
  const { SIZES, RATES, titleOf, rowLink, smallTable, facts, section, sparkline, dayOf } = opatlas.parts;
  const NEIGHBOURS = 7;

  /** Returns a word of a shell: in quotes where it is more than letters, digits and marks without a meaning. */
  const quoted = (word) => /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;

  /** Returns the command that asks for a row; "" for attention of several lengths, which a command cannot name. */
  function command(overview, type, columns, row) {
    const get = (name) => columns.get(name, row), database = overview.databases[0].asked, by = get("implementation");
    if (type.collective) {
      return ["opatlas query", database, type.name, get("message_bytes"), get("num_devices"), ...(get("dtype") ? ["--dtypes", get("dtype")] : [])].map(String).map((word, i) => i ? quoted(word) : word).join(" ");
    }
    if (columns.has("sequences") && get("sequences")) return "";
    const shapes = String(get("input_shapes")).split(";");
    while (shapes.length > 1 && !shapes[shapes.length - 1]) shapes.pop();
    const stack = type.implementations.length > 1 && get("origin") !== "captured" ? ["--implementation", by.split(" ")[0]] : [];
    const dtypes = get("dtype") ? ["--dtypes", get("dtype")] : [];
    return ["opatlas query", ...[database, type.name, ...shapes, ...dtypes, ...stack].map(quoted)].join(" ");
  }

  /** Returns the rows of the curve of a row by size; of a row without one those of its implementation with the nearest sizes. */
  function neighbours(columns, row, sizes) {
    const rows = Array.from({ length: columns.length }, (_, i) => i);
    const curve = columns.has("curve") ? columns.get("curve", row) : null;
    if (curve !== null) {
      const own = rows.filter((i) => columns.get("curve", i) === curve).sort((i, j) => columns.get("varies", i) - columns.get("varies", j));
      const begin = Math.max(0, Math.min(own.indexOf(row) - (NEIGHBOURS >> 1), own.length - NEIGHBOURS));
      return own.slice(begin, begin + NEIGHBOURS);
    }
    const far = (i) => sizes.reduce((sum, name) => {
      const one = columns.get(name, row), other = columns.get(name, i);
      return sum + (one > 0 && other > 0 ? Math.abs(Math.log(one / other)) : one === other ? 0 : 10);
    }, 0);
    return rows.filter((i) => ["implementation", "dtype"].every((name) => columns.get(name, i) === columns.get(name, row)) && columns.get("duration_us", i) !== null)
      .map((i) => [far(i), i]).sort((one, other) => one[0] - other[0] || one[1] - other[1]).slice(0, NEIGHBOURS).map(([, i]) => i)
      .sort((i, j) => columns.get("duration_us", i) - columns.get("duration_us", j));
  }

  function neighbourTable(type, columns, row, several) {
    const sizes = opatlas.sizesOf(columns).filter((name) => !["bytes", "pairs"].includes(name));
    const rows = neighbours(columns, row, sizes);
    if (rows.length < 2) return null;
    const varying = sizes.filter((name) => new Set(rows.map((i) => columns.get(name, i))).size > 1).slice(0, 4);
    const named = varying.length ? varying : ["input_shapes"], own = columns.get("duration_us", row);
    const rates = ["tflops", "gbps", "bus_gbps"].filter((name) => columns.has(name)).slice(0, 1);
    const titles = [...named.map((name) => ({ title: SIZES[name] || (name === "input_shapes" ? "input shapes" : name), number: columns.isNumber(name) })),
      ...["duration_us", ...rates].map((name) => ({ title: titleOf(name), number: true })), { title: "of this row", number: true }, { title: "quality" }];
    const cells = rows.map((i) => {
      const us = columns.get("duration_us", i), first = columns.get(named[0], i), text = columns.isNumber(named[0]) ? number(first) : first;
      const link = i === row ? h("strong", {}, text) : h("a", { href: rowLink(type.name, columns.get("id", i), several ? columns.get("implementation", i) : "") }, text);
      return [link, ...named.slice(1).map((name) => number(columns.get(name, i))), number(us), ...rates.map((name) => number(columns.get(name, i))),
        us && own ? `${(us / own).toFixed(2)}×` : "", t(columns.get("quality", i))];
    });
    return section("neighbours", smallTable(titles, cells));
  }

  /** Draws the rows of the curve, what is predicted between them, and the row itself. */
  function predictionOf(type, columns, row, open) {
    const curve = columns.has("curve") ? columns.get("curve", row) : null;
    if (curve === null) return null;
    const place = h("div"), told = columns.curves[curve];
    const rows = Array.from({ length: columns.length }, (_, i) => i).filter((i) => columns.get("curve", i) === curve)
      .sort((i, j) => columns.get("varies", i) - columns.get("varies", j));
    const line = { ...opatlas.curveOf(columns, rows, "duration_us"), colour: [...opatlas.colours([0]).values()][0], predicted: told.x.length ? told : null, chosen: row };
    setTimeout(() => opatlas.curves({ place, curves: [line], xTitle: opatlas.variesTitle(type, columns), yTitle: titleOf("duration_us"), open,
      height: 300, tips: opatlas.rowTips(columns), describe: `${columns.get("id", row)}: ${t("prediction")}` }), 0);
    return section(told.x.length ? "the prediction through it" : "the rows beside it", place,
      told.x.length ? h("p", { class: "faint" }, t("line: the model of the rows; band: its 90 % interval; points: measured, with their intervals")) : null);
  }

  function historyOf(overview, columns, row) {
    const runs = columns.history[row];
    if (!runs) return null;
    const last = runs[runs.length - 1][1], cells = [...runs].reverse().map(([run, us]) => [dayOf(overview.runs[run]), overview.runs[run], number(us), `${((us / last - 1) * 100).toFixed(1)} %`]);
    return section("history", sparkline(runs.map(([, us]) => us), runs.map(([run, us]) => `${dayOf(overview.runs[run])}: ${number(us)} µs`).join("\n")),
      smallTable([{ title: "day" }, { title: "run" }, { title: "duration", unit: "µs", number: true }, { title: "against the newest", number: true }], cells));
  }

  /** Returns the section of a row. names: [{name, title, unit}] of all cells; close: called by its button. */
  opatlas.rowSection = ({ overview, type, columns, row, names, link, open, close }) => {
    const id = columns.get("id", row), us = columns.get("duration_us", row), get = (name) => columns.has(name) ? columns.get(name, row) : "";
    const cell = (each) => {
      const value = columns.get(each.name, row);
      return columns.isNumber(each.name) ? number(value) + (each.unit && value !== null ? " " + each.unit : "") : t(value);
    };
    const told = ["quality", "implementation", "device", "cache", "instrument"].map(get).filter(Boolean).map((word) => t(word)).join(" · ");
    const headline = us === null || us === "" ? h("p", { class: "headline" }, t(get("status"))) : h("p", { class: "headline" }, `${number(us)} µs `,
      get("interval") ? h("span", { class: "faint" }, `± ${get("interval").toPrecision(2)} % (${t("90 % interval")})`) : null);
    const asked = us === null || us === "" ? "" : command(overview, type, columns, row);
    const copy = h("button", { type: "button", onclick: () => navigator.clipboard && navigator.clipboard.writeText(asked).then(() => { copy.textContent = t("copied"); }, () => {}) }, t("copy"));
    return h("section", { class: "row", "aria-label": t("row") }, h("h2", {}, h("a", { href: link }, id)), headline, h("p", { class: "faint" }, told),
      asked ? h("p", { class: "command" }, h("code", {}, asked), " ", copy) : null, opatlas.adviceOn(get("verdict")),
      h("div", { class: "split" }, predictionOf(type, columns, row, open), neighbourTable(type, columns, row, type.implementations.length > 1)),
      historyOf(overview, columns, row),
      h("details", { open: us === null || us === "" ? "" : null }, h("summary", {}, t("all cells")), facts(names.filter((each) => columns.has(each.name)).map((each) => [each.title, cell(each)]))),
      h("p", {}, h("button", { type: "button", onclick: close }, t("close"))));
  };
})();
