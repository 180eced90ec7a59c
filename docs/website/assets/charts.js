"use strict";
// Draws the charts of a page; Vega is loaded only where there is one.
(() => {
  const places = document.querySelectorAll(".chart");
  if (!places.length) return;
  const here = document.currentScript ? document.currentScript.src : "";
  const options = {
    mode: "vega-lite", renderer: "svg", ast: true,
    actions: { export: true, source: false, compiled: false, editor: false },
  };
  const script = document.createElement("script");
  script.src = new URL("vega.js", here).href;
  script.onload = () => {
    for (const place of places) {
      const chart = JSON.parse(place.querySelector("script").textContent);
      window.vegaEmbed(place, chart, options);
    }
  };
  document.head.append(script);
})();
