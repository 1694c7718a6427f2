// The explorer in a notebook: which sample, the explorer itself (explorer.js), and the tokens of other samples on the
// chosen token's path (wall.js). The three files are one module; anywidget calls render. Text is textContent only.
const WAITS_MS = 1500;  // longer, and the widget says that Python does not answer

// Whether what the widget stands on is dark: by the first background that is not see-through, through shadow roots.
function onDark(element) {
  for (let node = element; node; node = node.parentElement ?? node.getRootNode().host) {
    const [red, green, blue, opacity = 1] = (getComputedStyle(node).backgroundColor.match(/^rgba?\((.*)\)/)?.[1] ?? "0 0 0 0")
      .split(/[ ,/]+/).map(Number);
    if (opacity > 0.5) return 0.299 * red + 0.587 * green + 0.114 * blue < 128;
  }
  return false;
}

function chooser(label, parent, choose) {
  const box = make("label", "tp-choice", parent);
  make("span", "", box, label);
  const select = make("select", "", box);
  select.setAttribute("aria-label", label);
  select.addEventListener("change", () => choose(select.value));
  return select;
}

function fill(select, options, value) {
  select.replaceChildren();
  for (const [number, words] of options) make("option", "", select, words).value = String(number);
  select.value = String(value);
}

function render({ model, el }) {
  const root = make("div", "tp-widget", el);
  const title = make("div", "tp-title", root);
  const bar = make("div", "tp-choices", root);
  const set = (name, value) => {
    model.set(name, value);
    model.save_changes();
  };
  const previous = make("button", "tp-turn", bar, "‹"), next = make("button", "tp-turn", bar, "›");
  const samples = chooser("Sample", bar, (value) => set("sample", Number(value)));
  const tint = chooser("Tint by", bar, (value) => set("tint", value === "" ? null : Number(value)));
  const state = make("span", "tp-quiet", bar);
  state.setAttribute("role", "status");
  const box = make("div", "tp", root), about = make("div", "tp-about", root);
  const words = make("p", "", about), others = make("div", "wall", about);
  let choose = () => {}, timer = 0;

  function turn(button, by, name) {
    button.setAttribute("aria-label", name);
    button.addEventListener("click", () => set("sample", model.get("_view").sample + by));
  }
  turn(previous, -1, "previous sample");
  turn(next, 1, "next sample");

  function drawView() {
    const view = model.get("_view");
    for (const [name, value] of Object.entries(view.colours)) root.style.setProperty(`--widget-${name}`, value);
    root.style.colorScheme = view.scheme;
    title.textContent = view.title;
    fill(samples, view.samples, view.sample);
    const steps = [...Array(view.steps).keys()].map((step) => [step, `module at step ${step}`]);
    fill(tint, [...(view.paths ? [["", "path (CDF)"]] : []), ...steps], model.get("tint") ?? "");
    previous.disabled = view.sample === 0;
    next.disabled = view.sample + 1 >= view.total;
    choose = drawExplorer(box, view.data, {
      pick: (token) => { set("token", token); drawPath(); },
      node: (node) => set("through", model.get("through") === node || node.endsWith(".-1") ? null : node),
    });
    drawToken();
  }
  function drawToken() {
    choose(model.get("token"));
    drawPath();
  }
  function drawPath() {
    const path = model.get("_path"), now = model.get("_view").sample;
    const fits = path !== null && path.token === model.get("token") && path.sample === now;
    about.hidden = !fits;
    words.textContent = fits ? path.words : "";
    others.replaceChildren();
    if (fits && path.wall) drawWall(others, path.wall, (item) => model.send(item));
  }
  function wait() {
    clearTimeout(timer);
    const waits = () => model.get("_view").sample !== model.get("sample");
    state.textContent = "";
    if (waits()) timer = setTimeout(() => {
      state.textContent = waits() ? "Waiting for Python: other samples come from the running notebook." : "";
    }, WAITS_MS);
  }
  const changes = [["_view", drawView], ["_view", wait], ["sample", wait], ["token", drawToken], ["_path", drawPath]];
  for (const [name, act] of changes) model.on(`change:${name}`, act);

  // The page may change its colours, as JupyterLab does on a menu.
  const look = () => {
    if (model.get("_still") || model.get("theme") !== "auto" || onDark(el) === model.get("_dark")) return;
    set("_dark", onDark(el));
  };
  const watch = new MutationObserver(look);
  for (const node of [document.documentElement, document.body])
    watch.observe(node, { attributes: true, attributeFilter: ["class", "style", "data-jp-theme-light", "data-theme"] });
  requestAnimationFrame(look);
  bar.hidden = Boolean(model.get("_still"));
  drawView();
  return () => {
    watch.disconnect();
    clearTimeout(timer);
    for (const [name, act] of changes) model.off(`change:${name}`, act);
  };
}

// Without Python: a model that keeps what is set, and tells nobody but the drawing.
function showStill(element, state) {
  const model = { get: (name) => state[name] ?? null, set: (name, value) => { state[name] = value; }, save_changes() {},
    on() {}, off() {}, send() {} };
  render({ model, el: element });
}

export default { render };
