// Curves and points over two axes, linear or logarithmic, with limits, moments and the diagonal.
"use strict";

// A shape of its own for every series, so that nobody needs the colours.
sextant.shapeOf = function (chart, line) {
  return d3.svg.symbolTypes[chart.lines.indexOf(line) % 6];
};

sextant.kinds.lines = function (box, chart) {
  const named = chart.lines.filter(function (l) { return l.name; });
  if (named.length > 1)
    sextant.legend(box, named.map(function (l) {
      return { name: l.name, tone: l.tone, line: l.line, dashed: l.dashed, shape: sextant.shapeOf(chart, l) };
    }));
  const drawing = sextant.drawing(box, Math.min(360, Math.max(260, box.clientWidth * 0.42)), chart);
  const all = [];
  chart.lines.forEach(function (l) { l.points.forEach(function (p) { all.push(p); }); });
  const domain = function (axis, i, more) {
    const values = all.map(function (p) { return p[i]; }).concat(more);
    let low = d3.min(values), high = d3.max(values);
    if (axis.log) return [low / 1.25, high * 1.25];
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    return [axis.zero && low >= 0 ? 0 : low - room, high + room];
  };
  let xs = domain(chart.x, 0, chart.limit ? [chart.limit.value] : []), ys = domain(chart.y, 1, []);
  if (chart.diagonal) xs = ys = [Math.min(xs[0], ys[0]), Math.max(xs[1], ys[1])];
  const scale = function (axis) { return axis.log ? d3.scale.log() : d3.scale.linear(); };
  const top = 24, bottom = drawing.height - 44;
  const y = scale(chart.y).domain(ys).range([bottom, top]);
  const yTicks = chart.y.log ? sextant.logTicks(ys, 8) : y.ticks(6);
  const left = 14 + d3.max(yTicks.map(function (v) { return sextant.textWidth(sextant.tick(v)); })), right = drawing.width - 14;
  const x = scale(chart.x).domain(xs).range([left, right]);
  const most = Math.max(2, Math.floor((right - left) / 70));
  sextant.axis(drawing, y, "left", { values: yTicks, grid: right - left }, [left, 0]);
  sextant.axis(drawing, x, "bottom", { values: chart.x.log ? sextant.logTicks(xs, most) : x.ticks(most), grid: 0 }, [0, bottom]);
  drawing.svg.append("text").attr({ class: "soft", x: right, y: drawing.height - 8, "text-anchor": "end" }).text(chart.x.title);
  drawing.svg.append("text").attr({ class: "soft", x: 0, y: 12 }).text(chart.y.title);
  if (chart.diagonal)
    drawing.svg.append("line").attr({ class: "limit", x1: x(xs[0]), y1: y(xs[0]), x2: x(xs[1]), y2: y(xs[1]) });
  chart.moments.forEach(function (m) {
    drawing.svg.append("line").attr({ class: "moment", x1: x(m.value), x2: x(m.value), y1: top, y2: bottom });
    drawing.svg.append("text").attr({ class: "soft halo", x: x(m.value) + 4, y: top + 10 }).text(m.label);
  });
  const taken = [];
  if (chart.limit) {
    const at = x(chart.limit.value), wide = sextant.textWidth(chart.limit.label);
    drawing.svg.append("line").attr({ class: "limit", x1: at, x2: at, y1: top, y2: bottom });
    const end = at - wide - 6 > left;
    drawing.svg.append("text").attr({ class: "halo", x: end ? at - 5 : at + 5, y: top + 10, "text-anchor": end ? "end" : "start" }).text(chart.limit.label);
    taken.push([end ? at - 5 - wide : at + 5, top - 2, wide, 16]);
  }
  const free = function (b) {
    return b[0] >= left - 2 && b[0] + b[2] <= drawing.width && !taken.some(function (t) {
      return b[0] < t[0] + t[2] + 3 && t[0] < b[0] + b[2] + 3 && b[1] < t[1] + t[3] && t[1] < b[1] + b[3];
    });
  };
  const labels = [];
  chart.lines.forEach(function (l) {
    if (l.line && l.points.length > 1) {
      const path = drawing.svg.append("path").datum(l.points).attr("class", "stroke " + l.tone + (l.dashed ? " dashed" : ""));
      path.attr("d", d3.svg.line().x(function (p) { return x(p[0]); }).y(function (p) { return y(p[1]); }));
      if (!l.marks) path.classed("mark-line", true);
    }
    const shape = d3.svg.symbol().type(sextant.shapeOf(chart, l)).size(l.points.length > 200 ? 18 : 64);
    if (l.marks)
      l.points.forEach(function (p) {
        const mark = drawing.svg.append("path").attr({
          class: "mark fill " + l.tone.split(" ")[0], d: shape(), transform: "translate(" + x(p[0]) + "," + y(p[1]) + ")",
        });
        sextant.reads(mark, (p[2] ? p[2] + "\n" : l.name ? l.name + "\n" : "") + chart.x.title + ": " + sextant.number(p[0]) + "\n" + chart.y.title + ": " + sextant.number(p[1]));
        taken.push([x(p[0]) - 5, y(p[1]) - 5, 10, 10]);
        if (p[3]) labels.push(p);
      });
  });
  // Beside its mark where nothing lies: right, left, above, below; nowhere else.
  labels.forEach(function (p) {
    const wide = sextant.textWidth(p[3]), px = x(p[0]), py = y(p[1]);
    const at = [[px + 9, py - 8], [px - 9 - wide, py - 8], [px - wide / 2, py - 24], [px - wide / 2, py + 8]].find(function (c) {
      return free([c[0], c[1], wide, 16]) && c[1] > 14 && c[1] + 16 < bottom;
    });
    if (!at) return;
    taken.push([at[0], at[1], wide, 16]);
    drawing.svg.append("text").attr({ class: "halo", x: at[0], y: at[1] + 12 }).text(p[3]);
  });
};
