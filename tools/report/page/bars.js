// Bars that lie (one or two a row, from zero to both sides) and columns that stand (stacks against a limit).
"use strict";

sextant.kinds.bars = function (box, chart) {
  const paired = chart.rows.some(function (r) {
    return r.other !== undefined;
  });
  if (chart.legend.length === 2) {
    sextant.legend(box, [
      { name: chart.legend[0], tone: chart.rows[0].tone },
      { name: chart.legend[1], tone: "grey hatch" },
    ]);
  }
  const wide = box.clientWidth >= 520;
  const widest = d3.max(chart.rows, function (r) {
    return sextant.textWidth(r.name);
  });
  // On narrow screens names stand above their bars.
  const nameRoom = wide ? Math.min(widest, box.clientWidth * 0.4) + 10 : 0;
  const labels = [];
  chart.rows.forEach(function (r) {
    labels.push(r.label);
    if (r.other !== undefined) labels.push(r.other_label);
  });
  const labelRoom = d3.max(labels.map(function (l) { return sextant.textWidth(l); })) + 10;
  const bar = paired ? 13 : 18, head = wide ? 0 : 18, gap = 8;
  const row = head + (paired ? 2 * bar + 1 : bar) + gap;
  const drawing = sextant.drawing(box, row * chart.rows.length + 4, chart);
  const values = [0];
  chart.rows.forEach(function (r) {
    values.push(r.value);
    if (r.other !== undefined) values.push(r.other);
  });
  const low = d3.min(values), high = d3.max(values);
  const left = nameRoom + (low < 0 ? labelRoom : 0), right = drawing.width - (high > 0 ? labelRoom : 6);
  const x = d3.scale.linear().domain([low, high === low ? low + 1 : high]).range([left, Math.max(left + 20, right)]);
  if (low < 0)
    drawing.svg.append("line").attr({ class: "zero", x1: x(0), x2: x(0), y1: 0, y2: drawing.height });
  chart.rows.forEach(function (r, i) {
    const top = i * row + 2;
    const name = drawing.svg.append("text").attr({ x: 0, y: top + (wide ? (row - gap) / 2 + 4 : 12) });
    name.text(sextant.fitted(r.name, wide ? nameRoom - 10 : drawing.width - 4));
    if (!wide) name.attr("class", "soft halo");
    const draw = function (value, label, tone, y, of) {
      const from = Math.min(x(0), x(value)), width = Math.max(1, Math.abs(x(value) - x(0)));
      sextant.rect(drawing.svg, tone, { x: from, y: y, width: width, height: bar }, r.name + (of ? ", " + of : "") + ": " + label);
      drawing.svg.append("text").attr({
        x: value < 0 ? from - 6 : from + width + 6, y: y + bar / 2 + 4, "text-anchor": value < 0 ? "end" : "start",
      }).text(label);
    };
    draw(r.value, r.label, r.tone, top + head, chart.legend[0]);
    if (r.other !== undefined) draw(r.other, r.other_label, "grey hatch", top + head + bar + 1, chart.legend[1]);
  });
};

sextant.kinds.stacks = function (box, chart) {
  sextant.legend(box, chart.series);
  const limit = chart.limit ? chart.limit.value : 0;
  const totals = chart.columns.map(function (_, i) {
    return d3.sum(chart.series, function (s) { return s.values[i]; });
  });
  const most = Math.max(limit, d3.max(totals)) * 1.04;
  const drawing = sextant.drawing(box, 300, chart);
  const top = 24, bottom = drawing.height - 44, right = drawing.width - 2;
  const y = d3.scale.linear().domain([0, most]).range([bottom, top]);
  const values = y.ticks(6);
  const left = 12 + d3.max(values.map(function (v) { return sextant.textWidth(sextant.tick(v)); }));
  sextant.axis(drawing, y, "left", { values: values, grid: right - left }, [left, 0]);
  // Few columns do not fill the page: a GPU is no wall.
  const step = Math.min((right - left) / chart.columns.length, 120);
  const width = Math.max(1, step * 0.72);
  const every = Math.ceil((sextant.textWidth(chart.columns[chart.columns.length - 1]) + 6) / step);
  chart.columns.forEach(function (name, i) {
    const x = left + step * i + (step - width) / 2;
    let sum = 0;
    chart.series.forEach(function (s) {
      if (!(s.values[i] > 0)) return;
      const from = y(sum), to = y((sum += s.values[i]));
      sextant.rect(drawing.svg, s.tone, { x: x, y: to, width: width, height: Math.max(0.5, from - to) },
        chart.x + " " + name + ", " + s.name + ": " + sextant.number(s.values[i]) + " " + chart.unit);
    });
    const total = sextant.number(Number(totals[i].toFixed(totals[i] < 1 ? 3 : 1)));
    if (sextant.textWidth(total, true) < step - 2)
      drawing.svg.append("text").attr({ class: "strong halo", x: x + width / 2, y: y(totals[i]) - 5, "text-anchor": "middle" }).text(total);
    if (i % every === 0)
      drawing.svg.append("text").attr({ class: "soft", x: x + width / 2, y: bottom + 16, "text-anchor": "middle" }).text(name);
  });
  // Names beside the last column, where there is room: nobody needs the colours then.
  const end = left + step * chart.columns.length;
  if (end + 190 < right) {
    let sum = 0;
    chart.series.forEach(function (s) {
      const value = s.values[chart.columns.length - 1], from = y(sum), to = y((sum += value));
      if (from - to < 14) return;
      drawing.svg.append("text").attr({ class: "halo", x: end + 2, y: (from + to) / 2 + 4 }).text(s.name + " " + sextant.number(Number(value.toPrecision(3))));
    });
  }
  drawing.svg.append("text").attr({ class: "soft", x: left, y: bottom + 36 }).text(chart.x);
  drawing.svg.append("text").attr({ class: "soft", x: 0, y: 12 }).text(chart.unit);
  if (chart.limit) {
    drawing.svg.append("line").attr({ class: "limit", x1: left, x2: right, y1: y(limit), y2: y(limit) });
    const text = drawing.svg.append("text").attr({ class: "halo", x: right - 2, y: y(limit) - 6, "text-anchor": "end" });
    text.text(chart.limit.label);
    // A total beneath the label would be written over.
    const begins = right - sextant.textWidth(chart.limit.label) - 8;
    drawing.svg.selectAll("text.strong").each(function () {
      const t = d3.select(this), at = Number(t.attr("y"));
      if (Math.abs(at - (y(limit) - 6)) < 13 && Number(t.attr("x")) > begins - 20) t.attr("y", y(limit) + 15);
      else if (Math.abs(at - y(limit) - (-4)) < 9) t.attr("y", y(limit) + 15);
    });
  }
};
