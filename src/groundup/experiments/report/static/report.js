// Draws the visible charts in the colors of the style sheet.
function draw() {
  const style = getComputedStyle(document.documentElement);
  for (const area of document.querySelectorAll(".plot-area")) {
    if (area.offsetParent === null) continue;
    const text = area.nextElementSibling.textContent
      .replace(/var\((--[a-z-]+)\)/g, (_, name) => style.getPropertyValue(name).trim());
    const { data, layout } = JSON.parse(text);
    Plotly.react(area, data, layout, { responsive: true, displaylogo: false });
  }
}
addEventListener("change", draw);
addEventListener("toggle", draw, true);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
draw();
