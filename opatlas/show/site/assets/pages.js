"use strict";
/* The frame of the pages: what stands behind # in the address says which page, and keeps filters, order, axes and row. */
(() => {
  const { element: h, t } = opatlas;
  const { typeLink, rowLink } = opatlas.parts;
  const main = document.getElementById("main");

  // Settings.

  const dark = matchMedia("(prefers-color-scheme: dark)");
  function applyTheme() {
    const wanted = opatlas.setting("theme") || "system";
    document.documentElement.dataset.theme = wanted === "system" ? (dark.matches ? "dark" : "light") : wanted;
  }

  function header(overview, place) {
    const link = (href, word) => h("a", { href, "aria-current": place === href ? "page" : null }, t(word));
    const choice = (name, title, options, current) => {
      const select = h("select", { name, "aria-label": t(title), onchange: () => {
        opatlas.setting(name, select.value);
        if (name === "language") opatlas.language = select.value;
        applyTheme();
        show();
      } }, ...options.map(([value, word]) => h("option", { value }, word)));
      select.value = current;
      return select;
    };
    const names = new Set(overview.pages);
    document.getElementById("header").replaceChildren(
      h("nav", { "aria-label": "OpAtlas" }, link("#/", "overview"),
        names.has("implementations") ? link("#/implementations", "implementations") : null,
        names.has("databases") ? link("#/databases", "comparison") : null,
        overview.types.some((each) => each.collective) ? link("#/collectives", "collectives") : null,
        overview.diagnosis ? link("#/diagnosis", "diagnosis") : null,
        overview.models.length ? link("#/models", "models") : null),
      h("div", { class: "settings" },
        choice("language", "language", [["en", "English"], ["zh", "中文"]], opatlas.language), " ",
        choice("theme", "theme", [["system", t("as the system")], ["light", t("light")], ["dark", t("dark")]], opatlas.setting("theme") || "system")));
    const skip = document.getElementById("skip");
    skip.textContent = t("skip to the contents");
    skip.href = location.hash || "#/";
    skip.onclick = (event) => { event.preventDefault(); main.focus(); };
  }

  // Routes.

  let address = "";
  /** Keeps filters in the address, so that a link shows the same; without a step in the history for each key. */
  opatlas.keep = (state) => {
    const text = state.toString();
    address = location.hash.split("?")[0] + (text ? "?" + text : "");
    history.replaceState(null, "", address);
  };

  opatlas.pages.row = (overview, id) => {
    const types = overview.types.filter((each) => id === each.name || id.startsWith(each.name + "-"));
    const type = types.sort((one, other) => other.name.length - one.name.length)[0];
    if (!type) return [h("h1", {}, id), h("p", { class: "problem" }, t("no row has this name"))];
    location.replace(id === type.name ? typeLink(id) : rowLink(type.name, id));
    return [];
  };

  /** Returns what a part of the address says; the part itself if it is none that a page wrote. */
  function decoded(text) {
    try {
      return decodeURIComponent(text);
    } catch (error) {
      return text;
    }
  }

  let latest = 0;
  async function show() {
    const own = ++latest;
    document.documentElement.lang = opatlas.language === "zh" ? "zh-CN" : "en";
    const overview = await opatlas.load("overview");
    const [path, query] = location.hash.split(/\?(.*)/s);
    const [, kind = "", ...rest] = path.replace(/^#/, "").split("/");
    const name = decoded(rest.join("/")), state = new URLSearchParams(query || "");
    address = location.hash;
    opatlas.learnVerdicts(overview);
    header(overview, path || "#/");
    opatlas.tables.length = 0;
    if (!main.childElementCount) main.replaceChildren(h("p", { role: "status" }, t("loading")));
    const page = opatlas.pages[kind], content = page ? await page(overview, name || kind, state) : [h("h1", {}, t("there is no such page"))];
    if (own !== latest) return;
    main.replaceChildren(...content.filter(Boolean));
    document.title = (main.querySelector("h1") || {}).textContent + " · OpAtlas";
    main.dataset.page = path || "#/";
    main.dataset.ready = String(performance.now());
    const chosen = main.querySelector(".row");
    scrollTo(0, chosen ? chosen.offsetTop - 10 : 0);
  }

  const fail = (error) => main.replaceChildren(h("p", { class: "problem" }, String(error)));
  addEventListener("hashchange", () => { if (location.hash !== address) show().catch(fail); });
  dark.addEventListener("change", () => { applyTheme(); show().catch(fail); });
  applyTheme();
  show().catch(fail);
})();
