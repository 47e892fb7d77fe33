// What is wrong with an open report, as a list of texts: charts without marks, text that is cut or lies on other text, a page that
// must be scrolled sideways, what a keyboard does not reach.
(function () {
  const wrong = [];
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) wrong.push("the page is " + root.scrollWidth + " wide in a window of " + root.clientWidth);
  const boxes = Array.from(document.querySelectorAll(".chart"));
  if (boxes.length === 0) wrong.push("the page has no chart");
  const shown = function (m) {
    const b = m.getBBox ? m.getBBox() : { width: 0, height: 0 };
    return b.width > 0 && b.height > 0;
  };
  boxes.forEach(function (box) {
    const title = box.closest("section").querySelector(".section").textContent;
    const svg = box.querySelector("svg[role=img]");
    if (!svg) return wrong.push(title + ": nothing is drawn");
    if (!svg.getAttribute("aria-label")) wrong.push(title + ": the drawing has no name");
    const marks = Array.from(svg.querySelectorAll(".mark, .mark-line")).filter(shown);
    if (marks.length === 0) wrong.push(title + ": the chart is empty");
    if (!box.querySelector("[tabindex]") && box.tabIndex !== 0) wrong.push(title + ": a keyboard does not reach the chart");
    const frame = svg.getBoundingClientRect(), texts = Array.from(svg.querySelectorAll("text")).filter(function (t) { return t.textContent; });
    const areas = texts.map(function (t) { return t.getBoundingClientRect(); });
    texts.forEach(function (t, i) {
      const a = areas[i];
      if (a.left < frame.left - 1 || a.right > frame.right + 1 || a.top < frame.top - 1 || a.bottom > frame.bottom + 1)
        wrong.push(title + ": the text '" + t.textContent + "' is cut");
      if (/NaN|undefined|Infinity/.test(t.textContent)) wrong.push(title + ": the text '" + t.textContent + "'");
      for (let k = 0; k < i && texts.length < 400; ++k) {
        const b = areas[k];
        if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3)
          wrong.push(title + ": '" + t.textContent + "' lies on '" + texts[k].textContent + "'");
      }
    });
  });
  document.querySelectorAll("section").forEach(function (s) {
    if (s.querySelector(".chart") && !s.querySelector("table") && !s.querySelector("figcaption")) wrong.push(s.textContent.slice(0, 30) + ": a chart without words");
  });
  return wrong;
})();
