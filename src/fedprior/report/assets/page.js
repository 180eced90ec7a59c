"use strict";
(() => {
  const root = document.documentElement;
  let documents = [];
  let views = [];

  // Charts are drawn when they can be seen, and again when their place has another width.
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        seen.unobserve(entry.target);
        draw(entry.target);
      }
    }
  }, { rootMargin: "600px" });

  function draw(place) {
    const chart = structuredClone(documents[Number(place.dataset.chart)]);
    const narrow = place.clientWidth < 480;
    if (narrow) chart.config.axis.labelLimit = 96;
    if (narrow) chart.config.legend.columns = 2;
    const options = {
      mode: "vega-lite", renderer: "svg", ast: true,
      actions: { export: true, source: false, compiled: false, editor: false },
      downloadFileName: "chart",
    };
    return window.vegaEmbed(place, chart, options).then((found) => {
      views.push(found);
      place.dataset.drawn = "";
      new ResizeObserver(() => found.view.resize().runAsync()).observe(place);
    });
  }

  function element(tag, className, text) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  const first = (value) => (Array.isArray(value) ? value[0] : value);

  function shown(column, value) {
    if (first(value) === null) return "–";
    if (column.digits === null || typeof value === "string") return String(value);
    if (Array.isArray(value)) {
      const [mean, low, high] = value.map((part) => shown(column, part));
      return value[1] === null ? mean : `${mean} [${low}, ${high}]`;
    }
    const sign = column.signed && value > 0 ? "+" : "";
    return sign + value.toLocaleString("en", {
      minimumFractionDigits: column.digits, maximumFractionDigits: column.digits,
    });
  }

  function compared(a, b) {
    if (a === null || b === null) return (a === null) - (b === null);
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), "en", { numeric: true });
  }

  function table(place) {
    const { columns, rows } = documents[Number(place.dataset.table)];
    const grid = element("table");
    const head = grid.createTHead().insertRow();
    const body = grid.createTBody();
    const state = { by: null, down: false, words: "" };
    const count = element("span", "note");

    function fill() {
      const words = state.words.trim().toLowerCase();
      const texts = (row) => row.filter((_, k) => columns[k].digits === null).join("\u0000").toLowerCase();
      const kept = rows.filter((row) => texts(row).includes(words));
      if (state.by !== null) {
        const sign = state.down ? -1 : 1;
        kept.sort((a, b) => {
          const [left, right] = [first(a[state.by]), first(b[state.by])];
          return (left === null || right === null ? 1 : sign) * compared(left, right);
        });
      }
      body.replaceChildren(...kept.map((row) => {
        const line = element("tr");
        row.forEach((value, k) => {
          const told = shown(columns[k], value);
          const kind = columns[k].digits === null ? "word" : "number";
          line.append(element("td", ["helps", "harms"].includes(told) ? `${kind} ${told}` : kind, told));
        });
        return line;
      }));
      count.textContent = kept.length === rows.length ? `${rows.length} rows` : `${kept.length} of ${rows.length} rows`;
    }

    columns.forEach((column, k) => {
      const cell = element("th", column.digits === null ? "" : "number");
      cell.scope = "col";
      const button = element("button", "", column.title);
      button.type = "button";
      button.addEventListener("click", () => {
        state.down = state.by === k ? !state.down : column.digits !== null;
        state.by = k;
        for (const other of head.cells) other.removeAttribute("aria-sort");
        cell.setAttribute("aria-sort", state.down ? "descending" : "ascending");
        fill();
      });
      cell.append(button);
      head.append(cell);
    });
    if (rows.length > 12) {
      const label = element("label", "", "filter ");
      const input = element("input");
      input.type = "search";
      input.addEventListener("input", () => { state.words = input.value; fill(); });
      label.append(input);
      const tools = element("div", "filter");
      tools.append(label, count);
      place.append(tools);
    }
    const scroll = element("div", "scroll");
    scroll.tabIndex = 0;
    scroll.append(grid);
    place.append(scroll);
    fill();
  }

  function choice(place) {
    const select = place.querySelector("select");
    const options = [...place.children].filter((child) => child.classList.contains("option"));
    select.addEventListener("change", () => {
      options.forEach((option, k) => { option.hidden = k !== select.selectedIndex; });
    });
  }

  function start() {
    documents = JSON.parse(document.getElementById("documents").textContent);
    document.querySelectorAll("[data-table]").forEach(table);
    document.querySelectorAll(".choice").forEach(choice);
    document.querySelectorAll("[data-chart]").forEach((place) => seen.observe(place));
  }

  function theme() {
    const button = document.getElementById("theme");
    const system = window.matchMedia("(prefers-color-scheme: dark)");
    const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
    const tell = () => { button.textContent = dark() ? "light" : "dark"; };
    button.addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      tell();
    });
    system.addEventListener("change", tell);
    button.hidden = false;
    tell();
  }

  // Paper shows everything that is not hidden by a choice.
  window.addEventListener("beforeprint", () => {
    for (const place of document.querySelectorAll("[data-chart]:not([data-drawn])")) {
      if (place.offsetParent !== null) draw(place);
    }
  });

  async function follow() {
    let version = "";
    for (;;) {
      await new Promise((resolve) => setTimeout(resolve, 1000));
      const answer = await fetch(`main?version=${encodeURIComponent(version)}`).catch(() => null);
      if (answer === null) {
        document.title = `(ended) ${document.title.replace(/^\(ended\) /, "")}`;
        continue;
      }
      if (answer.status !== 200) continue;
      version = answer.headers.get("ETag") ?? "";
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
      views.forEach((found) => found.finalize());
      views = [];
      const top = window.scrollY;
      document.querySelector("main").replaceWith(fresh);
      document.title = fresh.querySelector("h1").textContent;
      start();
      window.scrollTo(0, top);
    }
  }

  start();
  theme();
  if ("watched" in root.dataset) follow();
})();
