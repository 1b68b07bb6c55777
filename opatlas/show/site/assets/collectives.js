"use strict";
/* The page of collectives: bus bandwidth over the bytes of messages. */
(() => {
  const { element: h, number, t } = opatlas;
  const { titleOf, typeLink, rowLink, smallTable, facts } = opatlas.parts;

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

  opatlas.pages.collectives = collectivesPage;
})();
