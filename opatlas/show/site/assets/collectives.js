"use strict";
/* The page of collectives: bus bandwidth, and the time of small messages, over the bytes of messages. */
(() => {
  const { element: h, number, t } = opatlas;
  const { titleOf, typeLink, rowLink, smallTable } = opatlas.parts;

  async function collectivesPage(overview) {
    const types = overview.types.filter((each) => each.collective);
    const found = await Promise.all(types.map(async (each) => [each, new opatlas.Columns(await opatlas.load(each.file))]));
    const panels = found.map(([type, columns]) => {
      const place = h("div"), rates = h("div"), rows = Array.from({ length: columns.length }, (_, row) => row);
      const curves = (what) => opatlas.curvesOf(columns, rows, what), named = curves("duration_us");
      const draw = (into, what) => opatlas.curves({ place: into, curves: curves(what), xTitle: titleOf("message_bytes"), yTitle: titleOf(what), height: 300, tips: opatlas.rowTips(columns),
        describe: `${type.name}: ${titleOf(what)}`, open: (row) => { location.hash = rowLink(type.name, columns.get("id", row)); } });
      setTimeout(() => { draw(place, "bus_gbps"); draw(rates, "duration_us"); }, 0);
      return h("section", {}, h("h2", {}, h("a", { href: typeLink(type.name) }, type.name)),
        h("ul", { class: "legend" }, ...named.map((curve) => h("li", {}, h("span", { class: "swatch", style: `background:${curve.colour}` }), curve.name))), h("div", { class: "split" }, place, rates));
    });
    const titles = [{ title: "kernel type" }, { title: "rows", number: true }, { title: "with a duration", number: true }, { title: "dtypes" }];
    return [h("h1", {}, t("collectives")),
      smallTable(titles, types.map((each) => [h("a", { href: typeLink(each.name) }, each.name), number(each.rows), number(each.timed), each.dtypes.join(", ")])),
      ...panels];
  }

  opatlas.pages.collectives = collectivesPage;
})();
