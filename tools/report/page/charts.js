// What all charts share: the drawing area, marks that keyboard and pointer read out, patterns, legends, axes.
"use strict";

const sextant = { kinds: {} };

// "28.4", "1,024", "0.00956": four digits at most, without zeros that say nothing.
sextant.number = function (x) {
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size >= 1000 && size < 1e6) return d3.format(",.0f")(x);
  if (size >= 1e6) return d3.format(".3s")(x).replace("G", " G").replace("M", " M").replace("T", " T");
  if (size < 1e-3) return x.toExponential(1);
  return String(Number(x.toPrecision(4)));
};
// On axes.
sextant.tick = function (x) {
  const size = Math.abs(x);
  if (size >= 1e15) return x.toExponential(0);
  if (size >= 1e9) return sextant.number(x / 1e9) + "G";
  if (size >= 1e6) return sextant.number(x / 1e6) + "M";
  if (size >= 1e4) return sextant.number(x / 1e3) + "k";
  return sextant.number(x);
};

sextant.seconds = function (s) {
  const size = Math.abs(s);
  if (size === 0) return "0";
  if (size >= 1) return Number(s.toPrecision(4)) + " s";
  if (size >= 1e-3) return Number((1e3 * s).toPrecision(3)) + " ms";
  return Number((1e6 * s).toPrecision(3)) + " µs";
};

// A fresh drawing of this height in a chart's box.
sextant.drawing = function (box, height, chart) {
  const width = Math.max(240, Math.floor(box.clientWidth));
  const svg = d3.select(box).append("svg").attr({
    viewBox: "0 0 " + width + " " + height,
    role: "img",
    "aria-label": chart.about,
  });
  return { svg: svg, width: width, height: height };
};

// How wide a text is on paper; measured once for each.
sextant.textWidth = (function () {
  const known = {};
  let canvas = null;
  return function (text, bold) {
    const key = (bold ? "b" : "n") + text;
    if (known[key] === undefined) {
      canvas = canvas || document.createElement("canvas").getContext("2d");
      canvas.font = (bold ? "600 " : "") + "12px " + getComputedStyle(document.body).fontFamily;
      known[key] = canvas.measureText(text).width;
    }
    return known[key];
  };
})();

// As much of a text as there is room for.
sextant.fitted = function (text, room) {
  if (sextant.textWidth(text) <= room) return text;
  let n = text.length;
  while (n > 1 && sextant.textWidth(text.slice(0, n) + "…") > room) --n;
  return text.slice(0, n) + "…";
};

// Filled with its colour, and with stripes over it where the tone says so. `says`: what the tip reads.
sextant.rect = function (parent, tone, at, says) {
  const word = tone.split(" ");
  const mark = parent.append("rect").attr("class", "mark fill " + word[0]).attr(at);
  if (word[1] === "hatch") parent.append("rect").attr("class", "over").attr(at).attr("fill", "url(#hatch)");
  if (says) sextant.reads(mark, says);
  return mark;
};

sextant.reads = function (mark, says) {
  mark.node().says = says;
};

sextant.legend = function (box, entries) {
  const items = d3.select(box).append("ul").attr("class", "legend").selectAll("li").data(entries).enter().append("li");
  items.each(function (entry) {
    const swatch = d3.select(this).append("svg").attr({ viewBox: "0 0 16 12", "aria-hidden": "true" });
    if (entry.line)
      swatch.append("line").attr({ x1: 0, x2: 16, y1: 6, y2: 6, class: "stroke " + entry.tone + (entry.dashed ? " dashed" : "") });
    else if (entry.shape)
      swatch.append("path").attr({ class: "fill " + entry.tone.split(" ")[0], d: d3.svg.symbol().type(entry.shape).size(60)(), transform: "translate(8,6)" });
    else sextant.rect(swatch, entry.tone, { x: 0, y: 0, width: 16, height: 12 });
    swatch.selectAll(".mark").classed("mark", false);
  });
  items.append("span").text(function (entry) {
    return entry.name;
  });
};

sextant.axis = function (drawing, scale, side, ticks, at) {
  const axis = d3.svg.axis().scale(scale).orient(side).tickPadding(6).outerTickSize(0);
  axis.tickFormat(ticks.format || sextant.tick);
  if (ticks.values) axis.tickValues(ticks.values);
  else axis.ticks(ticks.count);
  axis.innerTickSize(-ticks.grid);
  return drawing.svg.append("g").attr({ class: "axis", transform: "translate(" + at[0] + "," + at[1] + ")" }).call(axis);
};

// Values that stand on a logarithmic axis: powers of ten, or 1, 2 and 5 of each where these are few.
sextant.logTicks = function (domain, most) {
  const out = [];
  for (const steps of [[1, 2, 5], [1], null]) {
    out.length = 0;
    const first = Math.floor(Math.log10(domain[0])), last = Math.ceil(Math.log10(domain[1]));
    const every = steps ? 1 : Math.ceil((last - first) / most);
    for (let e = first; e <= last; e += every)
      for (const s of steps || [1]) {
        const x = s * Math.pow(10, e);
        if (x >= domain[0] * 0.999 && x <= domain[1] * 1.001) out.push(x);
      }
    if (out.length <= most && out.length > 0) break;
  }
  return out.slice();
};
