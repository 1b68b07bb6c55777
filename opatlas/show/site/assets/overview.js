"use strict";
/* The overview: what the database is, three numbers, where a step's time goes, quality, what is new, kernel types. */
(() => {
  const { element: h, number, t } = opatlas;
  const { typeLink, facts, counted, section, problems, sparkline, dayOf } = opatlas.parts;
  const QUALITIES = { quiet: "var(--quiet)", composition: "var(--bar)", "not judged": "var(--unknown)" };

  function sums(database, what) {
    const counts = new Map();
    for (const type of database.kernel_types) for (const [word, count] of Object.entries(type[what])) counts.set(word, (counts.get(word) || 0) + count);
    return counts;
  }

  const percent = (share, digits = 0) => `${(share * 100).toFixed(digits)} %`;
  const tile = (value, title, more) => h("div", { class: "tile" }, h("strong", {}, value), h("span", {}, title), more ? h("small", {}, more) : null);

  /** Returns the three numbers: durations, their exactness, and how near the hardware the kernels are, or how many are quiet. */
  function tiles({ timed, rows, interval, roofline, quiet }, types) {
    return h("div", { class: "tiles" },
      tile(number(timed), t("durations"), `${t("of")} ${number(rows)} ${t("rows of")} ${number(types)}${opatlas.language === "zh" ? "" : " kernel types"}`),
      interval === null ? null : tile(`± ${interval.toPrecision(2)} %`, t("median 90 % interval"), t("also on another device of this type")),
      roofline !== null ? tile(`${roofline.toFixed(0)} %`, t("of the roof, in the median"), t("of the peak rate, or of the bandwidth"))
        : quiet === null ? null : tile(percent(quiet), t("quiet samples"), ""));
  }

  function stepSection(overview, types) {
    if (!overview.step) return null;
    const { model, batch, context, tp, ep } = overview.step, answers = new opatlas.Columns(overview.step.answers);
    const title = `${model.split("/").pop()}: ${number(batch)} ${t("sequences of")} ${number(context)} ${t("tokens each")}` + (tp > 1 ? `, tp ${tp}` : "") + (ep > 1 ? `, ep ${ep}` : "");
    return h("section", {}, h("h2", {}, t("where the time of a step goes")), h("p", {}, h("a", { href: "#/models" }, title), h("span", { class: "faint" }, ` · ${t("decode")}, ${overview.step.dtype}`)),
      ...opatlas.stepTotal(answers, overview.step.point), opatlas.timeline(answers, overview.step.point, types), opatlas.timelineLegend());
  }

  function qualitySection(types) {
    const counts = new Map();
    for (const type of types) for (const [word, count] of Object.entries(type.quality)) counts.set(word, (counts.get(word) || 0) + count);
    if (!counts.size) return null;
    const order = [...counts].sort((one, other) => other[1] - one[1]), all = order.reduce((sum, [, count]) => sum + count, 0);
    const rest = [...opatlas.colours(order.map(([word]) => word).filter((word) => !Object.hasOwn(QUALITIES, word)))], colours = new Map([...rest, ...Object.entries(QUALITIES)]);
    return section("quality", h("div", { class: "stacked" }, ...order.map(([word, count]) => h("span", { title: `${t(word)} ${number(count)}`, style: `flex-grow:${count};background:${colours.get(word)}` }))),
      h("ul", { class: "legend" }, ...order.map(([word, count]) => h("li", {}, h("span", { class: "swatch", style: `background:${colours.get(word)}` }), `${t(word)} ${number(count)} (${percent(count / all, count / all < 0.1 ? 1 : 0)})`))));
  }

  function newestSection({ newest }) {
    if (!newest) return null;
    const lines = [`${dayOf(newest.run)}: ${number(newest.rows)} ${t("rows measured")}`];
    if (newest.again) lines.push(`${number(newest.again)} ${t("of them again")}: ${newest.change >= 0 ? "+" : "−"}${Math.abs(newest.change * 100).toFixed(1)} % ${t("in the median")}`);
    const steps = Object.entries(newest.steps);
    if (steps.length) lines.push(steps.map(([word, count]) => `${number(count)} ${t(word)}`).join(", "));
    return section("the newest run", ...lines.map((line) => h("p", {}, line)),
      newest.largest.length ? h("ul", {}, ...newest.largest.map((each) => h("li", {}, h("a", { href: "#/row/" + encodeURIComponent(each.id) }, each.id),
        ` ${each.percent > 0 ? "+" : "−"}${Math.abs(each.percent).toFixed(0)} % ${t("from")} ${dayOf(each.after)}`))) : null,
      h("p", { class: "faint" }, `${newest.run} · ${t("runs")}: ${number(newest.runs)}`));
  }

  /* What is as it should be needs no words. */
  const but = (counts, plain) => Object.keys(counts).length === 1 && plain in counts && plain !== "measured" ? counts : Object.fromEntries(Object.entries(counts).filter(([word]) => word !== plain));

  function typeTable(overview) {
    const inStep = new Map();
    if (overview.step) {
      const answers = new opatlas.Columns(overview.step.answers);
      for (const i of overview.step.point.parts) inStep.set(answers.get("kernel_type", i), (inStep.get(answers.get("kernel_type", i)) || 0) + (answers.get("us_per_call", i) || 0) * answers.get("calls", i));
    }
    const types = [...overview.types].sort((one, other) => (inStep.get(other.name) || 0) - (inStep.get(one.name) || 0) || other.timed - one.timed || (one.name < other.name ? -1 : 1));
    const some = { roofline: types.some((each) => each.roofline !== null), trend: types.some((each) => each.trend.length > 1),
      failed: types.some((each) => Object.keys(each.status).some((word) => word !== "measured")), several: new Set(types.flatMap((each) => each.implementations)).size > 1 };
    const columns = [
      ["kernel type", (each) => h("a", { href: typeLink(each.name) }, each.name)],
      ["with a duration", (each) => each.timed < each.rows ? `${number(each.timed)} / ${number(each.rows)}` : number(each.timed), true],
      ["durations", (each) => each.least_us === null ? "" : each.least_us === each.most_us ? number(each.least_us) : `${number(each.least_us)} – ${number(each.most_us)}`, true, "µs"],
      some.roofline ? ["roofline share", (each) => each.roofline === null ? "" : h("span", {}, h("span", { class: "bar", style: `width:${Math.min(each.roofline, 110) * 0.5}px` }), ` ${each.roofline.toFixed(0)} %`)] : null,
      some.trend ? ["trend over runs", (each) => each.trend.length > 1 ? sparkline(each.trend.map(([, factor]) => factor), each.trend.map(([run, factor]) => `${dayOf(overview.runs[run])}: ${factor}×`).join("\n")) : ""] : null,
      ["quality", (each) => counted(but(each.quality, "quiet"))],
      some.failed ? ["status", (each) => counted(but(each.status, "measured"))] : null,
      some.several ? ["implementation", (each) => each.implementations.join(", ")] : null,
    ].filter(Boolean);
    return opatlas.parts.smallTable(columns.map(([title, , isNumber, unit]) => ({ title, number: isNumber, unit })), types.map((each) => columns.map(([, cell]) => cell(each))));
  }

  function overviewPage(overview) {
    const [first] = overview.databases, types = new Set(overview.types.map((each) => each.name));
    const known = h("datalist", { id: "types" }, ...overview.types.map((each) => h("option", { value: each.name })));
    const search = h("input", { type: "search", name: "row", list: "types", "aria-label": t("find a row by its name") });
    const find = h("form", { class: "controls", onsubmit: (event) => {
      event.preventDefault();
      const text = search.value.trim();
      if (text) location.hash = "#/row/" + encodeURIComponent(text);
    } }, h("label", {}, t("find a row by its name"), search), known, h("button", {}, t("open")));
    const [device, ...versions] = first.folder ? first.folder.split(" ") : [first.device || first.path];
    const by = [...new Set(overview.types.flatMap((each) => each.implementations))];
    return [
      h("h1", {}, device, versions.length ? h("small", {}, ` ${versions.join(" ")}`) : null),
      h("p", { class: "lead" }, `${t("Durations of operators")}: ${by.slice(0, 6).map(t).join(", ")}${by.length > 6 ? ", …" : ""}`, first.shipped ? h("span", { class: "faint" }, ` · ${first.shipped}`) : null),
      tiles(overview.figures, overview.types.length),
      stepSection(overview, types),
      h("div", { class: "split" }, qualitySection(overview.types), newestSection(overview)),
      problems(overview.problems),
      section("kernel types", find, typeTable(overview)),
      section("databases", ...overview.databases.map((each) => h("details", {}, h("summary", {}, each.folder || each.path), factsOf(each)))),
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

  opatlas.pages[""] = overviewPage;
})();
