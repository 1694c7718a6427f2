// The tour of Home: an invitation, then one small step at a time with a picture. All of it is in `data`
// (views/home/tour_steps.py); nothing is asked of a server until a link is followed. textContent and setAttribute only.
const TOUR_SVG = "http://www.w3.org/2000/svg";
const TOUR_AT = { tour: null, step: 0 };  // where the visitor is: kept when the page writes an address of its own

function tourPut(parent, tag, className, text) {
  const node = parent.appendChild(document.createElement(tag));
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function tourDraw(parent, tag, attributes, text) {
  const node = parent.appendChild(document.createElementNS(TOUR_SVG, tag));
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

const TOUR_PATCH = 16;  // units of a patch's side in the picture

// A picture under a grid; where patches are marked, the others are dimmed, so that the marks are never mixed with colours.
function tourPicture(parent, figure) {
  const width = figure.cols * TOUR_PATCH, height = figure.rows * TOUR_PATCH;
  const box = tourPut(parent, "div", "tour-picture");
  const svg = tourDraw(box, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": figure.label });
  tourDraw(svg, "image", { href: figure.image, width, height });
  const marked = new Set([...figure.same, ...(figure.chosen === null ? [] : [figure.chosen])]);
  const place = (token) => ({ x: (token % figure.cols) * TOUR_PATCH, y: Math.floor(token / figure.cols) * TOUR_PATCH,
    width: TOUR_PATCH, height: TOUR_PATCH });
  for (let token = 0; marked.size && token < figure.rows * figure.cols; token += 1) {
    if (!marked.has(token)) tourDraw(svg, "rect", { ...place(token), class: "tour-veil" });
  }
  for (let at = 1; at < figure.cols; at += 1) {
    tourDraw(svg, "line", { x1: at * TOUR_PATCH, x2: at * TOUR_PATCH, y1: 0, y2: height, class: "tour-line" });
  }
  for (let at = 1; at < figure.rows; at += 1) {
    tourDraw(svg, "line", { y1: at * TOUR_PATCH, y2: at * TOUR_PATCH, x1: 0, x2: width, class: "tour-line" });
  }
  for (const end of ["under", "over"]) {
    for (const token of figure.same) tourDraw(svg, "rect", { ...place(token), class: `tour-${end}` });
    if (figure.chosen !== null) {
      const chosen = end === "under" ? "tour-chosen-under" : "tour-chosen";
      tourDraw(svg, "rect", { ...place(figure.chosen), class: `tour-${end} ${chosen}` });
    }
  }
}

function tourBars(parent, figure) {
  const list = tourPut(parent, "dl", "tour-bars");
  const most = figure.most ?? Math.max(...figure.rows.map((row) => row.value));
  for (const row of figure.rows) {
    const line = tourPut(list, "div", row.chosen ? "tour-on" : "");
    tourPut(line, "dt", "", row.name);
    tourPut(tourPut(line, "dd", ""), "div", "tour-bar").style.width = `${(100 * row.value) / most}%`;
    tourPut(line, "dd", "", row.text);
  }
}

function tourPair(parent, figure) {
  const pair = tourPut(parent, "div", "tour-pair");
  for (const side of figure.sides) {
    const part = tourPut(pair, "section", "");
    tourPut(part, "h4", "", side.name);
    tourBars(part, { rows: side.rows, most: figure.most });
  }
  if (figure.way) tourWay(parent, figure.way);
}

// Columns are steps, rows are modules, the area of a circle is the router's probability; the line is the way taken.
function tourWay(parent, figure) {
  const left = 74, gap = 84, top = 26, row = 23;
  const x = (step) => left + 22 + step * gap, y = (module) => top + 12 + module * row;
  const width = x(figure.steps.length - 1) + 34, height = y(figure.modules - 1) + 18;
  const svg = tourDraw(tourPut(parent, "div", "tour-way"), "svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": figure.label });
  for (let module = 0; module < figure.modules; module += 1) {
    tourDraw(svg, "text", { x: 0, y: y(module) + 4 }, `module ${module}`);
  }
  figure.steps.forEach((step, place) => {
    tourDraw(svg, "text", { x: x(place), y: 14, "text-anchor": "middle" }, `step ${place}`);
    if (place + 1 < figure.steps.length) {
      const next = figure.steps[place + 1].module, middle = (x(place) + x(place + 1)) / 2;
      tourDraw(svg, "path", { d: `M${x(place)},${y(step.module)}C${middle},${y(step.module)} ${middle},${y(next)} `
        + `${x(place + 1)},${y(next)}` });
    }
    step.probs.forEach((probability, module) => tourDraw(svg, "circle", { cx: x(place), cy: y(module),
      r: Math.max(1.2, 13 * Math.sqrt(probability)), class: module === step.module ? "tour-taken" : "tour-other" }));
  });
}

function tourPatches(parent, figure) {
  const list = tourPut(parent, "ul", "tour-patches");
  list.setAttribute("aria-label", figure.label);
  figure.names.forEach((name, place) => {
    const item = tourPut(list, "li", "");
    item.setAttribute("role", "img");
    item.setAttribute("aria-label", name);
    item.title = name;
    item.style.backgroundImage = `url("${figure.image}")`;
    item.style.backgroundSize = `${60 * figure.names.length}px 60px`;
    item.style.backgroundPosition = `${-60 * place}px 0`;
  });
}

function tourText(parent, figure) {
  const box = tourPut(parent, "div", "tour-text");
  box.tabIndex = 0;  // it may scroll
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", figure.label);
  for (const piece of figure.pieces) {
    tourPut(box, piece.mark ? "mark" : "span", piece.mark === "chosen" ? "tour-chosen" : "", piece.text);
  }
}

function tourContexts(parent, figure) {
  const list = tourPut(parent, "ul", "tour-contexts");
  for (const item of figure.items) {
    const line = tourPut(list, "li", "");
    line.append(document.createTextNode(item.before));
    tourPut(line, "mark", "", item.text);
    line.append(document.createTextNode(item.after));
  }
}

function tourFrames(parent, figure) {
  const large = tourPut(parent, "img", "tour-large");
  const words = tourPut(parent, "p", "tour-quiet");
  const strip = tourPut(parent, "div", "tour-strip");
  const show = (place) => {
    large.src = figure.items[place].image;
    large.alt = `${figure.label}, ${figure.items[place].words}`;
    words.textContent = figure.items[place].words;
    [...strip.children].forEach((button, at) => button.setAttribute("aria-pressed", String(at === place)));
  };
  figure.items.forEach((item, place) => {
    const button = tourPut(strip, "button", "");
    button.type = "button";
    const picture = tourPut(button, "img", "");
    picture.src = item.image;
    picture.alt = "";
    tourPut(button, "span", "", item.name);
    button.addEventListener("click", () => show(place));
  });
  show(figure.items.length - 1);
}

const TOUR_FIGURES = { picture: tourPicture, bars: tourBars, pair: tourPair, way: tourWay, patches: tourPatches,
  text: tourText, contexts: tourContexts, frames: tourFrames };

function tourButton(parent, className, text, act) {
  const button = tourPut(parent, "button", className, text);
  button.type = "button";
  button.addEventListener("click", act);
  return button;
}

// The step that the address asks for, as `tour=photograph.4`, the fourth; null where it asks for none that there is.
function tourAsked(data) {
  const [key, number] = (new URLSearchParams(location.search).get("tour") ?? "").split(".");
  const tour = data.tours.find((one) => one.key === key);
  return tour && { tour: key, step: Math.min(Math.max(Number(number) || 1, 1), tour.steps.length) - 1 };
}

// In the place of the step before, so that Back leads out of the tour.
function tourWrite() {
  const address = new URL(location.href);
  if (TOUR_AT.tour) address.searchParams.set("tour", `${TOUR_AT.tour}.${TOUR_AT.step + 1}`);
  else address.searchParams.delete("tour");
  if (address.href !== location.href) history.replaceState(history.state, "", address);
}

// Draws `data` into `root`; a step's link calls go(to).
function drawTour(root, data, go) {
  for (const [name, value] of Object.entries(data.colours)) root.style.setProperty(`--tour-${name}`, value);
  const move = (tour, step) => {
    Object.assign(TOUR_AT, { tour, step });
    tourWrite();
    draw();
    (root.querySelector("h3") ?? root.querySelector("button")).focus();
  };
  const leave = () => {
    const from = data.tours.findIndex((tour) => tour.key === TOUR_AT.tour);
    move(null, 0);
    root.querySelectorAll(".tour-choice")[Math.max(0, from)]?.focus();
  };

  function invite() {
    const box = tourPut(root, "section", "tour-box");
    box.setAttribute("aria-label", "Tour");
    tourPut(box, "div", "", data.invitation);
    const choices = tourPut(box, "div", "tour-choices");
    for (const tour of data.tours) {
      const button = tourButton(choices, "tour-choice", undefined, () => move(tour.key, 0));
      if (tour.image) {
        const picture = tourPut(button, "img", "");
        picture.src = tour.image;
        picture.alt = "";
      } else {
        tourPut(button, "span", "tour-word", tour.word).setAttribute("aria-hidden", "true");
      }
      const words = tourPut(button, "span", "");
      tourPut(words, "strong", "", tour.name);
      tourPut(words, "span", "tour-quiet", tour.words);
    }
  }

  function showStep(tour) {
    const number = Math.min(TOUR_AT.step, tour.steps.length - 1), step = tour.steps[number];
    const last = number === tour.steps.length - 1;
    const box = tourPut(root, "section", "tour-box");
    box.setAttribute("aria-label", `Tour: ${tour.name}`);
    const top = tourPut(box, "div", "tour-top");
    tourPut(top, "span", "tour-quiet", `${number + 1} of ${tour.steps.length}`);
    const dots = tourPut(top, "div", "tour-dots");
    dots.setAttribute("aria-hidden", "true");
    tour.steps.forEach((_, at) => tourPut(dots, "span", at <= number ? "tour-done" : ""));
    tourButton(top, "tour-leave", "Leave the tour", leave);
    const body = tourPut(box, "div", "tour-body");
    const words = tourPut(body, "div", "");
    const title = tourPut(words, "h3", "", step.title);
    title.tabIndex = -1;
    for (const text of step.words) tourPut(words, "p", "", text);
    const link = tourPut(tourPut(words, "p", ""), "a", "", step.link.words);
    link.href = step.link.href;
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      go(step.link.to);
    });
    const nav = tourPut(words, "div", "tour-row tour-nav");
    if (number) tourButton(nav, "", "Back", () => move(tour.key, number - 1));
    tourButton(nav, "tour-main", last ? "Finish" : "Next", () => (last ? leave() : move(tour.key, number + 1)));
    const figure = tourPut(body, "div", "");
    TOUR_FIGURES[step.figure.kind](figure, step.figure);
    if (step.figure.caption) tourPut(figure, "p", "tour-quiet", step.figure.caption);
  }

  function draw() {
    root.replaceChildren();
    const tour = data.tours.find((one) => one.key === TOUR_AT.tour);
    if (tour) showStep(tour);
    else invite();
  }

  root.onkeydown = (event) => {
    const tour = data.tours.find((one) => one.key === TOUR_AT.tour);
    if (!tour || event.altKey || event.ctrlKey || event.metaKey) return;
    const to = { ArrowRight: TOUR_AT.step + 1, ArrowLeft: TOUR_AT.step - 1 }[event.key];
    if (event.key === "Escape") leave();
    else if (to >= 0 && to < tour.steps.length) move(tour.key, to);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  Object.assign(TOUR_AT, tourAsked(data));
  tourWrite();
  draw();
}
