"use strict";
/* The diagnosis: the rows that lose the most time, and what to do for each verdict. */
(() => {
  const { element: h, number, t } = opatlas;
  const { rowLink, smallTable, facts, section } = opatlas.parts;

  /** What to do for each verdict, and the APIs that do it. The texts on rules and APIs are English in both languages. */
  let verdicts = new Map();
  function learnVerdicts(overview) {
    verdicts = new Map((overview.diagnosis ? overview.diagnosis.verdicts : []).map((each) => [each.verdict, each]));
    for (const each of verdicts.values()) {
      opatlas.chinese[each.verdict] = opatlas.chinese[each.verdict] || each.zh;
      opatlas.chinese[each.advice.what] = each.advice.zh;
    }
  }

  function adviceOn(verdict) {
    const known = verdicts.get(verdict);
    return !known ? null : h("section", { class: "advice" }, h("p", {}, h("strong", {}, t(verdict)), ": ", t(known.advice.what)),
      h("details", {}, h("summary", {}, t("rule and calls")), facts([["rule", known.test], ["source", known.source], ...Object.entries(known.advice.apis)])));
  }

  function diagnosisPage(overview, name, state) {
    const { diagnosis } = overview;
    if (!diagnosis) return [h("h1", {}, t("there is no such page"))];
    const titles = ["verdict", "rows", "share of the time", "what to do first"].map((title, i) => ({ title, number: i === 1 || i === 2, sentences: i === 3 }));
    const lines = diagnosis.verdicts.map((each) => [t(each.verdict), number(each.rows), `${(each.duration_us / diagnosis.time_us * 100).toFixed(1)} %`, t(each.advice.what)]);
    const columns = new opatlas.Columns(diagnosis.table), link = (row) => rowLink(columns.get("kernel_type", row), columns.get("id", row), columns.get("implementation", row));
    const shown = [{ name: "id", title: "row", long: true, link }, { name: "kernel_type", title: "kernel type" }, { name: "verdict", title: "verdict" },
      { name: "duration_us", title: "duration", unit: "µs" }, ...(diagnosis.counted ? [{ name: "launches", title: "launches" }, { name: "time_us", title: "time of all launches", unit: "µs" }] : []),
      { name: "roofline", title: "roofline share", unit: "%" }, { name: "lost_us", title: "time lost", unit: "µs" },
      { name: "implementation", title: "implementation" }, { name: "origin", title: "source" }, { name: "device", title: "device" }];
    const table = new opatlas.Table({ columns, shown, searched: ["id", "kernel_type"], state, changed: () => opatlas.keep(state),
      filters: ["verdict", "kernel_type", "implementation", "origin", "device"].map((each) => ({ name: each, title: shown.find((own) => own.name === each).title })) });
    return [
      h("h1", {}, t("diagnosis")),
      lines.length ? section("verdicts", smallTable(titles, lines)) : null,
      section("the most time lost", h("p", { class: "faint" }, t("ranked by the time lost; rows without known work or peaks by their whole time")),
        h("p", { class: "faint" }, `${t("time lost: duration × (1 − roofline share), of rows whose work and peaks are known")}: ${number(diagnosis.known)}; ${
          t("rows whose launches captures count")}: ${number(diagnosis.counted)}`), table.element),
    ];
  }

  opatlas.pages.diagnosis = diagnosisPage;
  Object.assign(opatlas, { learnVerdicts, adviceOn });
})();
