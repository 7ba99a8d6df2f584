() => {
  // Gradio replaces the element of a plot whenever its figure changes, so a plot is linked when the pointer first reaches it.
  document.addEventListener("pointerover", ({ target }) => {
    const plot = target.closest?.("#map .js-plotly-plot");
    if (!plot || plot.isLinked) return;
    plot.isLinked = true;
    const other = () => [...document.querySelectorAll("#map .js-plotly-plot")].find((found) => found !== plot);
    plot.on("plotly_hover", ({ event, points }) => {
      if (Array.isArray(event)) return; // Fx.hover below emits the event on the other plot, with its own argument
      Plotly.Fx.hover(other(), [{ curveNumber: 0, pointNumber: points[0].pointNumber }]);
    });
    plot.on("plotly_unhover", () => Plotly.Fx.unhover(other()));
  });
}
