"use strict";
/* The pages of collectives, and of the steps of models: without filters and chosen rows. */
(() => {
  const { element: h, number, t } = opatlas;
  const { titleOf, typeLink, rowLink, smallTable, facts } = opatlas.parts;

  // Collectives.

  async function collectivesPage(overview) {
    const types = overview.types.filter((each) => each.collective);
    const found = await Promise.all(types.map(async (each) => [each, new opatlas.Columns(await opatlas.load(each.file))]));
    const panels = found.map(([type, columns]) => {
      const place = h("div"), lines = (row) => `${columns.get("dtype", row)}, ${columns.get("num_devices", row)}`;
      const words = [...new Set(Array.from({ length: columns.length }, (_, row) => lines(row)))];
      const colours = opatlas.colours(words);
      const scatter = new opatlas.Scatter({ place, xTitle: titleOf("message_bytes"), yTitle: titleOf("bus_gbps"), describe: `${type.name}: ${t("bus bandwidth")}`,
        open: (row) => { location.hash = rowLink(type.name, columns.get("id", row)); },
        tips: [[t("row"), (row) => columns.get("id", row)], [titleOf("duration_us"), (row) => number(columns.get("duration_us", row))]] });
      setTimeout(() => scatter.draw(Array.from({ length: columns.length }, (_, row) => ({ x: columns.get("message_bytes", row),
        y: columns.get("bus_gbps", row), colour: colours.get(lines(row)), row }))), 0);
      return h("section", {}, h("h2", {}, h("a", { href: typeLink(type.name) }, type.name)),
        opatlas.legend(new Map([...colours].map(([word, colour]) => [`${word} ${t("devices")}`, colour]))) || "", place);
    });
    const titles = [{ title: "kernel type" }, { title: "rows", number: true }, { title: "with a duration", number: true }, { title: "dtypes" }];
    return [h("h1", {}, t("collectives")),
      smallTable(titles, types.map((each) => [h("a", { href: typeLink(each.name) }, each.name), number(each.rows), number(each.timed), each.dtypes.join(", ")])),
      h("div", { class: "split" }, ...panels)];
  }

  // Models.

  function modelsPage(overview) {
    const types = new Set(overview.types.map((each) => each.name));
    return [h("h1", {}, t("models")), ...overview.models.map((cost) => {
      const share = (us) => us === null || !cost.us ? "" : `${(us / cost.us * 100).toFixed(1)} %`;
      const titles = ["part", "kernel type", "calls", "each", "90 % interval", "share", "how known", "implementation"]
        .map((title, i) => ({ title, number: i > 1 && i < 6, unit: i === 3 || i === 4 ? "µs" : "" }));
      const missing = cost.parts.some((part) => part.how === "missing");
      const rows = cost.parts.map((part) => [part.part, types.has(part.kernel_type) ? h("a", { href: typeLink(part.kernel_type) }, part.kernel_type) : part.kernel_type,
        number(part.calls), number(part.us_per_call), part.interval_us ? part.interval_us.map(number).join(" – ") : "", share(part.us),
        t(part.how) + (part.reason ? `: ${part.reason}` : ""), part.implementation]);
      const hows = [...new Set(cost.parts.map((part) => part.how))], colours = opatlas.colours(hows);
      const totals = new Map();
      for (const part of cost.parts) if (part.us !== null) totals.set(part.kernel_type, [...(totals.get(part.kernel_type) || []), part]);
      const sumOf = (parts) => parts.reduce((sum, part) => sum + part.us, 0);
      const order = [...totals].sort((one, other) => sumOf(other[1]) - sumOf(one[1]));
      const bars = order.flatMap(([name, parts]) => {
        let from = 0;
        return hows.map((how) => ({ how, us: sumOf(parts.filter((part) => part.how === how)) })).filter((each) => each.us)
          .map(({ how, us }) => ({ name, from, value: (from += us), colour: colours.get(how) }));
      });
      const place = h("div");
      setTimeout(() => opatlas.bars(place, bars, `${t("duration")} (µs)`, `${cost.model}: ${t("by kernel type")}`), 0);
      const differs = cost.differs.length ? h("p", {}, `${cost.model}, ${t("with differences")}: ${cost.differs.join("; ")}`) : "";
      return h("section", {}, h("h2", {}, cost.question), differs, facts([
        ["sum", `${number(cost.us)} µs${missing ? " " + t("without what is missing") : ""}`],
        ["90 % interval", `${cost.interval_us.map(number).join(" – ")} µs`],
        ["tokens/s", number(Math.round(cost.tokens_per_s))],
        ["how known", Object.entries(cost.us_by_how).filter(([, us]) => us).map(([how, us]) => `${t(how)} ${share(us)}`).join(", ")],
      ]),
        cost.composition_us ? h("p", {}, `${share(cost.composition_us)} ${t("of the sum is that of compositions of operators")}`) : null,
        cost.untold_us ? h("p", {}, `${share(cost.untold_us)} ${t("of the sum may be that of compositions: the rows do not tell")}`) : null,
        h("p", { class: "faint" }, t("sum: one kernel after another, no gaps between launches, nothing overlaps")),
        opatlas.legend(colours) || "", place, smallTable(titles, rows));
    })];
  }

  Object.assign(opatlas.pages, { collectives: collectivesPage, models: modelsPage });
})();
