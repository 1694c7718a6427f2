// Draws every chart of the report from the Vega-Lite text beside it. Nothing is loaded: vegaEmbed is in this page.
const failed = [];
const drawn = [...document.querySelectorAll("[data-chart]")].map(async (box) => {
  const spec = JSON.parse(document.getElementById(box.dataset.chart).textContent);
  try {
    await window.vegaEmbed(box, spec, { actions: false, renderer: "svg" });
  } catch (error) {
    failed.push(String(error));
    box.textContent = "This chart could not be drawn; its numbers are below.";
  }
});
Promise.all(drawn).then(() => {
  document.body.dataset.state = failed.length ? "failed" : "drawn";
});
