"use strict";
// Draws the charts of a page; Vega is loaded only where there is one.
(() => {
  const LEAST = 130; // pixels of a drawing beside its labels: on a phone, what is still too wide scrolls
  const places = document.querySelectorAll(".chart");
  if (!places.length) return;
  const here = document.currentScript ? document.currentScript.src : "";
  const options = {
    mode: "vega-lite", renderer: "svg", ast: true,
    actions: { export: true, source: false, compiled: false, editor: false },
  };
  // The chart with a drawing that is narrower by so many pixels; what lies at a fixed distance moves with its edge.
  const narrowed = (chart, by) => {
    for (const { encoding } of chart.layer || []) {
      if (encoding && encoding.x && typeof encoding.x.value === "number") encoding.x.value -= by;
    }
    return { ...chart, width: chart.width - by };
  };
  const draw = async (place, chart) => {
    await window.vegaEmbed(place, chart, options);
    const by = Math.min(place.scrollWidth - place.clientWidth, chart.width - LEAST);
    if (by > 0) await window.vegaEmbed(place, narrowed(chart, by), options);
  };
  const script = document.createElement("script");
  script.src = new URL("vega.js", here).href;
  script.onload = () => {
    for (const place of places) draw(place, JSON.parse(place.querySelector("script").textContent));
  };
  document.head.append(script);
})();
