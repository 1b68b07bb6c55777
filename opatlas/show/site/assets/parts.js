"use strict";
/* Parts of pages: titles of sizes, links, small tables, facts, sections. */
(() => {
  const { element: h, number, t } = opatlas;

  /* Titles of sizes. Other columns of numbers are sizes, too, under their own names. */
  const SIZES = Object.assign(Object.create(null), {
    message_bytes: "bytes of the message", num_devices: "devices", topology_tier: "tier", batch: "batch", m: "M", n: "N", k: "K", groups: "groups",
    sequences: "sequences", queries: "queries", keys: "keys", pairs: "pairs", heads: "heads", kv_heads: "KV heads",
    head_size: "head size", pages: "pages", bytes: "bytes",
  });
  const RATES = Object.assign(Object.create(null), { duration_us: "duration (µs)", tflops: "arithmetic rate (10¹²/s)", gbps: "bandwidth (GB/s)", bus_gbps: "bus bandwidth (GB/s)" });
  const titleOf = (name) => {
    const [, word, unit] = /^(.*?)( \(.*\))?$/.exec(RATES[name] || SIZES[name] || name);
    return t(word) + (unit || "");
  };

  const typeLink = (name) => "#/type/" + encodeURIComponent(name);
  /* Of several implementations with the row, by: the one that is meant. */
  const rowLink = (type, id, by = "") => `${typeLink(type)}?row=${encodeURIComponent(id)}${by && "&by=" + encodeURIComponent(by)}`;

  function smallTable(titles, rows) {
    const numeric = titles.map((title) => title.number ? "number" : null);
    return h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, ...titles.map((each, i) => h("th", { scope: "col", class: numeric[i] }, t(each.title) + (each.unit ? ` (${each.unit})` : ""))))),
      h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map((cell, i) => h("td", { class: numeric[i] }, cell)))))));
  }

  const facts = (pairs) => h("dl", { class: "facts" }, ...pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined)
    .flatMap(([name, value]) => [h("dt", {}, t(name)), h("dd", {}, value)]));
  /* Counts by word: an object of a file, or a Map of sums over words of a database. */
  const counted = (counts) => (counts instanceof Map ? [...counts] : Object.entries(counts)).sort((one, other) => other[1] - one[1])
    .map(([word, count]) => `${t(word || "never run")} ${number(count)}`).join(", ");
  const section = (title, ...children) => h("section", {}, h("h2", {}, t(title)), ...children);

  opatlas.parts = { SIZES, RATES, titleOf, typeLink, rowLink, smallTable, facts, counted, section };
})();
