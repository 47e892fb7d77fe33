// Draws every chart, again when the page gets another width; reads marks out; opens tables for print.
"use strict";

(function () {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const boxes = Array.from(document.querySelectorAll(".chart"));
  const tip = document.getElementById("tip");

  const hatch = d3.select("body").insert("svg", "*").attr({ width: 0, height: 0, "aria-hidden": "true" }).style("position", "absolute");
  hatch.append("pattern").attr({ id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" })
    .append("line").attr({ class: "stripes", x1: 0, x2: 0, y1: 0, y2: 6 });

  const hide = function () {
    tip.hidden = true;
    document.querySelectorAll(".mark.at").forEach(function (m) { m.classList.remove("at"); });
  };
  const show = function (mark) {
    hide();
    tip.textContent = mark.says;
    tip.hidden = false;
    mark.classList.add("at");
    const at = mark.getBoundingClientRect(), size = tip.getBoundingClientRect();
    const x = Math.min(window.innerWidth - size.width - 8, Math.max(8, (Math.max(0, at.left) + Math.min(window.innerWidth, at.right)) / 2 - size.width / 2));
    tip.style.left = x + "px";
    tip.style.top = (at.top - size.height - 6 > 4 ? at.top - size.height - 6 : at.bottom + 6) + "px";
  };

  const draw = function (box) {
    const width = box.clientWidth;
    if (box.drawn === width || width === 0) return;
    box.drawn = width;
    box.innerHTML = "";
    sextant.kinds[charts[box.dataset.chart].kind](box, charts[box.dataset.chart]);
  };

  boxes.forEach(function (box) {
    draw(box);
    box.addEventListener("pointerover", function (event) { if (event.target.says) show(event.target); });
    box.addEventListener("pointerout", hide);
    // Arrow keys go from mark to mark; the timeline has keys of its own.
    if (charts[box.dataset.chart].kind === "timeline") return;
    box.tabIndex = 0;
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", charts[box.dataset.chart].about + ". Arrow keys read the values.");
    let at = -1;
    box.addEventListener("keydown", function (event) {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const marks = Array.from(box.querySelectorAll(".mark")).filter(function (m) { return m.says; });
      if (event.key === "Escape") hide();
      if (!step || marks.length === 0) return;
      event.preventDefault();
      at = Math.min(marks.length - 1, Math.max(0, at + step));
      show(marks[at]);
    });
    box.addEventListener("blur", function () { at = -1; hide(); });
  });

  let waiting = 0;
  window.addEventListener("resize", function () {
    window.clearTimeout(waiting);
    waiting = window.setTimeout(function () { hide(); boxes.forEach(draw); }, 100);
  });
  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("details").forEach(function (d) { d.open = true; });
  });
})();
