// One sample and its small flow picture, side by side: hover or focus a token and its ribbon is drawn as a
// line through the picture; hover a circle or a ribbon and the tokens that went there light up. Clicks go to Python.
// drawExplorer is called by the few lines that each host adds: the page (explorer.py), a notebook (notebook/widget.js).
// Everything that comes from data is written with textContent or setAttribute, never as markup.
const SVG = "http://www.w3.org/2000/svg";

function make(tag, className, parent, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined && text !== null) node.textContent = text;
  if (parent) parent.appendChild(node);
  return node;
}

function draw(tag, attributes, parent) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (parent) parent.appendChild(node);
  return node;
}

function curve(x0, y0, x1, y1) {
  const middle = (x0 + x1) / 2;
  return `M${x0},${y0}C${middle},${y0} ${middle},${y1} ${x1},${y1}`;
}

const EASY_TO_HIT = 7;  // thin ribbons can be clicked so far beside them, in units of the picture

// One of a group is a stop of the tab key: the first, then what had the focus last.
function asOneStop(group) {
  let stop = group[0];
  for (const element of group) {
    element.setAttribute("tabindex", element === stop ? "0" : "-1");
    element.addEventListener("focus", () => {
      stop.setAttribute("tabindex", "-1");
      element.setAttribute("tabindex", "0");
      stop = element;
    });
  }
}

// A group of shapes that act like buttons: one of them is a stop of the tab key, arrows lead to the next ones, Enter
// and space do what a click does, and what has the focus lights up as under the pointer.
function asButtons(shapes) {
  asOneStop(shapes.map(([shape]) => shape));
  shapes.forEach(([shape, label, act], index) => {
    shape.setAttribute("role", "button");
    shape.setAttribute("aria-label", label);
    shape.addEventListener("pointerenter", () => act("over"));
    shape.addEventListener("pointerleave", () => act("out"));
    shape.addEventListener("focus", () => act("over"));
    shape.addEventListener("blur", () => act("out"));
    shape.addEventListener("click", () => act("pick"));
    shape.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        act("pick");
      } else if (move !== undefined && shapes[index + move]) {
        event.preventDefault();
        shapes[index + move][0].focus();
      }
    });
  });
}

function buildFlow(flow, parent, onNode, onLink, chosenLink) {
  const svg = draw("svg", { viewBox: `0 0 ${flow.width} ${flow.height}`, class: "tp-flow", role: "group",
    "aria-label": flow.label }, parent);
  const ribbons = draw("g", { class: "tp-links" }, svg);
  const drawn = flow.links.map((link) => [link, draw("path", { d: curve(link.x0, link.y0, link.x1, link.y1),
    "stroke-width": link.w, class: link.key && link.key === chosenLink ? "tp-chosen" : "" }, ribbons)]);
  const line = draw("g", { class: "tp-line" }, svg);
  const hits = draw("g", { class: "tp-hits" }, svg);
  const links = [];
  // Thin ones last: beneath a broad ribbon they could not be reached.
  for (const [link, path] of onLink ? drawn.toSorted((a, b) => b[0].w - a[0].w) : []) {
    if (!link.key) continue;
    const hit = draw("path", { d: path.getAttribute("d"), "stroke-width": Math.max(EASY_TO_HIT, link.w) }, hits);
    hit.dataset.link = link.key;
    draw("title", {}, hit).textContent = link.title;
    links.push([hit, link.title, (what) => {
      if (what !== "pick") path.classList.toggle("tp-over", what === "over");
      onLink(what, link.key);
    }]);
  }
  asButtons(links);
  const circles = draw("g", { class: "tp-nodes" }, svg);
  asButtons(flow.nodes.map((node) => {
    const circle = draw("circle", { cx: node.x, cy: node.y, r: Math.max(1.5, node.r),
      class: node.hollow ? "tp-hollow" : node.skip ? "tp-skip" : "" }, circles);
    draw("title", {}, circle).textContent = node.title;
    circle.dataset.node = node.key;
    return [circle, node.title, (what) => onNode(what, node.key)];
  }));
  const dots = draw("g", { class: "tp-dots" }, svg);
  const words = draw("g", { class: "tp-words" }, svg);
  for (const step of flow.steps) {
    const text = draw("text", { x: step.x, y: 11, "text-anchor": "middle" }, words);
    text.textContent = step.label;
  }
  for (const row of flow.rows) {
    const text = draw("text", { x: 2, y: row.y + 3.5 }, words);
    text.textContent = row.label;
  }
  return { line, dots };
}

const MOST_TOLD = 4;  // tokens of a piece whose paths are told: a character has at most so many bytes
const MANY_SLOTS = 2;  // more would be K² lines between two steps: then only those of the largest weights are drawn

// The line has the ink of its path, over a casing that can be seen on any page.
function drawRibbon(flow, picture, token) {
  picture.line.replaceChildren();
  picture.dots.replaceChildren();
  if (!token) return;
  const ribbon = token.ribbon;
  for (const group of [picture.line, picture.dots]) group.style.setProperty("--tp-ink", token.line);
  const casing = draw("g", {}, picture.line);
  const place = (step, module) => ({ x: flow.x[step],
    y: flow.y[`${step}.${module}`] ?? flow.y[String(module)] ?? flow.other ?? flow.height - 6 });
  ribbon.forEach((modules, step) => {
    modules.forEach((module, slot) => {
      const here = place(step, module);
      const size = ribbon.length > 24 ? 0.5 : 1;
      const dot = draw("circle", { cx: here.x, cy: here.y, r: size * (slot === 0 ? 5 : 3.5) }, picture.dots);
      dot.setAttribute("class", slot === 0 ? "tp-first" : "");
      if (step + 1 >= ribbon.length) return;
      ribbon[step + 1].forEach((next, nextSlot) => {
        if (modules.length > MANY_SLOTS && slot + nextSlot > 0) return;
        const there = place(step + 1, next);
        if (slot === 0 && nextSlot === 0)
          draw("path", { d: curve(here.x, here.y, there.x, there.y), class: "tp-casing" }, casing);
        draw("path", { d: curve(here.x, here.y, there.x, there.y),
          class: slot === 0 && nextSlot === 0 ? "tp-first" : "tp-second" }, picture.line);
      });
    });
  });
}

function buildImage(data, parent, elements) {
  const frame = make("div", "tp-image", parent);
  frame.classList.toggle("tp-tinted", data.opacity > 0);
  frame.style.aspectRatio = `${data.cols} / ${data.rows}`;
  if (data.image) {
    const picture = make("img", "", frame);
    picture.alt = data.alt;
    picture.src = data.image;
  }
  const grid = make("div", "tp-grid", frame);
  grid.setAttribute("role", "group");
  grid.setAttribute("aria-label", data.label);
  grid.style.gridTemplateColumns = `repeat(${data.cols}, 1fr)`;
  grid.style.gridTemplateRows = `repeat(${data.rows}, 1fr)`;
  for (const token of data.tokens) {
    const cell = make("button", "tp-token tp-patch", grid, token.mark);
    cell.style.gridRow = String(token.row + 1);
    cell.style.gridColumn = String(token.col + 1);
    cell.style.setProperty("--fill", token.fill);
    cell.style.color = token.ink;
    elements.push([cell, [token.token]]);
  }
}

// One colour, or a stripe for each of several: the tokens that share a character, as its bytes do.
function stripes(fills, text) {
  const part = 100 / fills.length, end = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/.test(text) ? "left" : "right";
  return `linear-gradient(to ${end}, ${fills.map((fill, n) => `${fill} ${n * part}% ${(n + 1) * part}%`).join(", ")})`;
}

function buildText(data, parent, elements) {
  const box = make("div", "tp-text", parent);
  box.dir = "auto";
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", data.label);
  const known = new Map(data.tokens.map((token) => [token.token, token]));
  for (const piece of data.pieces) {
    if (!piece.tokens.length) {
      make("span", "", box, piece.text);
      continue;
    }
    const span = make("span", "tp-token tp-piece", box, piece.text);
    const covering = piece.tokens.map((token) => known.get(token));
    const marks = new Set(covering.map((token) => token.mark).filter(Boolean));
    if (marks.size) span.dataset.mark = [...marks].join(",");
    span.setAttribute("role", "button");
    span.style.setProperty("--fill", stripes(covering.map((token) => token.fill), piece.text));
    span.style.color = piece.ink;
    if (piece.thin) span.classList.add("tp-thin");
    span.style.setProperty("--first", covering[0].fill);
    if (piece.text.includes("\n")) span.classList.add("tp-newline");
    elements.push([span, piece.tokens]);
  }
}

function buildLegend(legend, parent) {
  if (legend.title) make("span", "", parent, legend.title);
  if (legend.scale) {
    const scale = make("span", "tp-key", parent); // stays together where the legend wraps
    make("span", "", scale, legend.scale.left);
    const bar = make("span", "tp-bar", scale);
    bar.style.background = `linear-gradient(to right, ${legend.scale.stops.join(",")})`;
    make("span", "", scale, legend.scale.right);
  }
  for (const key of legend.keys) {
    const entry = make("span", "tp-key", parent);
    make("span", "tp-swatch", entry).style.background = key.colour;
    make("span", "", entry, key.label);
  }
}

// A selector of the token, circle or ribbon inside `root` that has the focus. What is chosen by a key makes Python draw
// anew, and whoever pressed it goes on from there.
function focusedPart(root) {
  const active = root.getRootNode().activeElement;
  if (!active || !root.contains(active)) return null;
  const name = ["token", "node", "link"].find((part) => part in active.dataset);
  return name ? `[data-${name}="${active.dataset[name]}"]` : null;
}

// How far the text inside `root` is scrolled, to be given to a drawing of the same text: a redrawn box begins at its top.
function scrolledText(root) {
  const box = root.querySelector(".tp-text");
  return box && { text: box.textContent, top: box.scrollTop };
}

// Scrolls the box of a long text, never the page and without moving the focus, so that `element` is in its middle if it
// was not in sight.
function bringIntoSight(box, element) {
  if (!box || !element) return;
  const frame = box.getBoundingClientRect(), place = element.getBoundingClientRect();
  if (place.top >= frame.top && place.bottom <= frame.top + box.clientHeight) return;
  box.scrollTop += place.top - frame.top - Math.max(0, (box.clientHeight - place.height) / 2);
}

// Draws `data` (explorer_data.py) into `root`. `on` has pick(token or null), node("step.module"), and link("a>b") where
// ribbons can be chosen. Returns a function that chooses a token, or none, as a click does but without telling Python.
function drawExplorer(root, data, on) {
  const focused = focusedPart(root), scrolled = scrolledText(root);
  root.replaceChildren();
  root.style.setProperty("--opacity", String(data.opacity));
  for (const [name, value] of Object.entries(data.colours)) root.style.setProperty(`--tp-${name}`, value);
  const known = new Map(data.tokens.map((token) => [token.token, token]));
  const elements = [];

  const left = make("div", "tp-left", root);
  if (data.kind === "image") buildImage(data, left, elements);
  else buildText(data, left, elements);
  const legend = make("div", "tp-legend", left);
  if (data.legend) buildLegend(data.legend, legend);
  else make("span", "", legend, data.hint);

  const right = make("div", "tp-right", root);
  const light = (what, nodes) => {
    const places = nodes.map((node) => node.split(".").map(Number));
    for (const [element, tokens] of elements)
      element.classList.toggle("tp-lit", what === "over" && tokens.some((token) => places.every(([step, module]) =>
        (known.get(token).ribbon[step - data.first_step] || []).includes(module))));
  };
  const picture = buildFlow(data.flow, right,
    (what, key) => (what === "pick" ? on.node(key) : light(what, [key])),
    on.link && ((what, key) => (what === "pick" ? on.link(key) : light(what, key.split(">")))),
    data.chosen_link);
  make("p", "tp-quiet tp-caption", right, data.flow.caption);
  const words = make("div", "tp-readout", right);
  words.setAttribute("aria-live", "polite");

  function show(tokens) {
    words.replaceChildren();
    const first = tokens && known.get(tokens.includes(chosen) ? chosen : tokens[0]);
    drawRibbon(data.flow, picture, first);
    root.classList.toggle("tp-active", Boolean(first));
    if (!first) {
      make("p", "tp-quiet", words, data.invitation);
      return;
    }
    for (const token of tokens.slice(0, MOST_TOLD)) {
      make("p", "tp-strong", words, known.get(token).head);
      make("p", "", words, known.get(token).words);
    }
  }
  function lightSame(token) {
    const path = token === null ? null : known.get(token)?.path;
    for (const [element, tokens] of elements) {
      element.classList.toggle("tp-same", path !== null && tokens.some((one) => known.get(one).path === path));
      element.classList.toggle("tp-chosen", token !== null && tokens.includes(token));
      element.setAttribute("aria-pressed", String(token !== null && tokens.includes(token)));
    }
    root.classList.toggle("tp-picked", path !== null && path !== undefined);
  }
  let chosen = null;
  const rest = () => show(chosen === null ? null : [chosen]);
  const choose = (token) => {
    chosen = known.has(token) ? token : null;
    lightSame(chosen);
    rest();
  };
  asOneStop(elements.map(([element]) => element));
  elements.forEach(([element, tokens], index) => {
    const covering = tokens.map((token) => known.get(token));
    element.classList.toggle("tp-faded", covering.every((token) => token.faded));
    element.dataset.token = String(tokens[0]);
    element.setAttribute("aria-label", covering.map((token) => `${token.head}. ${token.words}`).join(" "));
    element.addEventListener("pointerenter", () => show(tokens));
    element.addEventListener("pointerleave", rest);
    element.addEventListener("focus", () => show(tokens));
    element.addEventListener("blur", rest);
    const pick = () => {  // the tokens of a piece one after the other, then none
      choose(tokens[tokens.indexOf(chosen) + 1] ?? null);
      on.pick(chosen);
    };
    element.addEventListener("click", pick);
    element.addEventListener("keydown", (event) => {
      const row = data.kind === "image" ? data.cols : 10;
      const move = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: row, ArrowUp: -row }[event.key];
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        pick();
      } else if (move !== undefined && elements[index + move]) {
        event.preventDefault();
        elements[index + move][0].focus();
      }
    });
  });
  choose(data.chosen);
  const box = root.querySelector(".tp-text");
  if (box && scrolled?.text === box.textContent) box.scrollTop = scrolled.top;
  const reveal = () => bringIntoSight(box, elements.find(([, tokens]) => tokens.includes(chosen))?.[0]);
  reveal();
  if (box) {  // it has its size only when styles and fonts are there; whoever moves in it is not led back
    const sized = new ResizeObserver(reveal);
    sized.observe(box);
    for (const what of ["wheel", "pointerdown", "touchstart", "keydown"])
      box.addEventListener(what, () => sized.disconnect(), { once: true, passive: true });
  }
  if (focused) root.querySelector(focused)?.focus({ preventScroll: true });
  return (token) => {
    choose(token);
    reveal();
  };
}
