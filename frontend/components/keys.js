// Streamlit lays what a button opens over the end of the page: the tab key does not lead there, and leaving the button
// closes it. Opened by key, the focus goes inside; tab goes round inside; escape gives the focus back to the button.
const TRIGGER = '[data-testid="stPopoverButton"]';
const OPENED = '[data-testid="stPopoverBody"]';
const STOPS = 'a[href], button, input, select, textarea, [tabindex]';
const PATIENCE_MS = 10000;  // what stands inside is asked for when it is opened

const drawn = (one) => one.getClientRects().length > 0;
const stops = (root, which = STOPS) => [...root.querySelectorAll(which)].filter((one) =>
  !one.disabled && one.tabIndex >= 0 && drawn(one));

// The first thing to write in or to choose from, else the first button. Marks of help come last: they explain, and
// stand before what they explain.
const first = (body) => stops(body).find((one) => one.matches("input, select, textarea")) ??
  stops(body).find((one) => !(one.getAttribute("aria-label") || "").startsWith("Help"));

let opener = "";  // the class of Streamlit that has its key; the button itself may be drawn anew

function enter(trigger) {
  opener = trigger.closest('[class*="st-key-"]')?.className.match(/st-key-\S+/)?.[0] || "";
  const until = performance.now() + PATIENCE_MS;
  const look = () => {
    const body = document.querySelector(OPENED), now = document.activeElement;
    if (performance.now() > until || (now !== document.body && !now.matches(TRIGGER))) return;
    const stop = body && first(body);
    if (stop) stop.focus();
    else requestAnimationFrame(look);
  };
  requestAnimationFrame(() => requestAnimationFrame(look));  // not before the click has opened it
}

// Closed from within, by escape or because something was chosen: the button gets the focus, the new one too where the
// page is drawn anew. Not when the focus has gone elsewhere by then, or a key or the pointer is used.
let waiting = 0;
function left(event) {
  if (!opener || event.relatedTarget || !event.target.closest?.(OPENED)) return;
  const turn = ++waiting, until = performance.now() + PATIENCE_MS, name = opener;
  const back = () => {
    if (turn !== waiting || performance.now() > until || document.activeElement?.closest?.(OPENED)) return;
    // A button with help is there twice, of which a narrow window hides the first.
    const trigger = [...document.querySelectorAll(`.${CSS.escape(name)} ${TRIGGER}`)].find(drawn);
    if (trigger && !document.querySelector(OPENED) && document.activeElement === document.body)
      trigger.focus({ preventScroll: true });
    requestAnimationFrame(back);
  };
  requestAnimationFrame(back);
}

// What a key works on may vanish with it: a chip, a job's button, the row of a list. Then the focus would fall to the
// whole page, and whoever uses keys would begin at its top. It goes to what is drawn anew under the same key, else to
// what stands at its place in the innermost container that is still there, else to what had the focus before or comes
// after it.
const HISTORY = 40, SETTLED_MS = 300;
const KEYED = /st-key-\S+/;
let places = [];  // what had the focus, the last first: the element, and its index in each container with a key around it

const focusable = (root) => stops(root, `${STOPS}, summary`);
const lost = () => !document.activeElement || document.activeElement === document.body;

function placeOf(element) {
  const around = [], all = focusable(document);  // measured once: this runs whenever the focus moves
  for (let box = element; box && box !== document.body; box = box.parentElement) {
    const name = box.className?.match?.(KEYED)?.[0];
    if (name) around.push({ name, index: all.filter((one) => box.contains(one)).indexOf(element) });
  }
  return { element, around, among: all.indexOf(element) };
}

function arrived(event) {
  if (event.target === document.body || !event.target.matches?.(`${STOPS}, summary`)) return;
  places = [placeOf(event.target), ...places.filter((one) => one.element !== event.target)].slice(0, HISTORY);
}

function stopAt({ name, index }) {
  const dialog = document.querySelector('[role="dialog"][aria-modal="true"], [data-testid="stDialog"]');
  for (const box of document.querySelectorAll(`.${CSS.escape(name)}`)) {
    const all = focusable(box).filter((one) => !dialog || dialog.contains(one));
    if (all.length) return all[Math.min(Math.max(index, 0), all.length - 1)];
  }
  return null;
}

function successor(late) {
  for (const place of places) {
    if (place.element.isConnected && !place.element.disabled && drawn(place.element)) return place.element;
    // Switched off, as after "Cancel": what comes in its stead may stand in the same row in a moment.
    const off = place.around.length && document.querySelector(`.${CSS.escape(place.around[0].name)} :disabled`);
    for (const box of off && !late ? place.around.slice(0, 2) : place.around) {
      const stop = stopAt(box);
      if (stop) return stop;
    }
    if (off && !late) return null;
  }
  const all = focusable(document), last = places[0]?.among ?? -1;
  return all[Math.min(last, all.length - 1)] ?? null;
}

let watching = 0;
function keepFocus() {
  const turn = ++watching, until = performance.now() + PATIENCE_MS;
  let since = 0;
  const look = () => {
    const now = performance.now();
    if (turn !== watching) return;
    since = lost() ? since || now : 0;
    if (since && now - since > SETTLED_MS) successor(now > until)?.focus({ preventScroll: true });
    if (now <= until || since) requestAnimationFrame(look);
    if (now > until + SETTLED_MS) watching += 1;
  };
  requestAnimationFrame(look);
}

// Streamlit drops a text that is pasted into a field too short for it, without a word: as much as fits is put in.
function pasted(event) {
  const field = event.target, text = event.clipboardData?.getData("text") || "";
  const words = field.closest?.('[data-testid="stTextInput"], [data-testid="stTextArea"]')?.textContent || "";
  const most = Number(words.match(/\d+\/(\d+)\s*$/)?.[1] || 0);
  const room = most - field.value?.length + (field.selectionEnd - field.selectionStart);
  if (!most || text.length <= room) return;
  event.preventDefault();
  const { value, selectionStart: start, selectionEnd: end } = field, put = text.slice(0, room);
  // As if it was typed: React hears of a value only if it is set as the browser does.
  Object.getOwnPropertyDescriptor(Object.getPrototypeOf(field), "value").set.call(
    field, value.slice(0, start) + put + value.slice(end));
  field.setSelectionRange(start + put.length, start + put.length);
  field.dispatchEvent(new InputEvent("input", { bubbles: true, inputType: "insertFromPaste", data: put }));
}

function pressed(event) {
  waiting += 1;
  watching += 1;
  if (["Enter", " ", "Escape"].includes(event.key) && event.target !== document.body) keepFocus();
  const trigger = event.target.closest?.(TRIGGER);
  if (trigger && (event.key === "Enter" || event.key === " ")) {
    if (trigger.getAttribute("aria-expanded") !== "true") enter(trigger);
    return;
  }
  if (event.key !== "Tab") return;
  const body = document.querySelector(OPENED);
  if (!body) return;
  const inside = body.contains(event.target), all = stops(body);
  if (!all.length || !(inside || trigger?.getAttribute("aria-expanded") === "true")) return;
  const place = all.indexOf(event.target), to = event.shiftKey ? place - 1 : place + 1;
  const next = inside ? all.at(to % all.length) : event.shiftKey ? null : first(body);
  if (!next) return;
  event.preventDefault();
  event.stopPropagation();
  next.focus();
}

const used = () => {
  waiting += 1;
  watching += 1;
};

// Streamlit waits this long before it sends what was chosen in a chart, in case a drag goes on; after a click nothing does.
const PAUSE_MS = 150;
const CHART = '[data-testid="stVegaLiteChart"]';
let hurried = false;
function hurry(event) {
  if (hurried || !event.target.closest?.(CHART)) return;
  const own = window.setTimeout;
  const ours = (call, ms, ...rest) => own.call(window, call, ms === PAUSE_MS ? 0 : ms, ...rest);
  hurried = true;
  window.setTimeout = ours;
  own.call(window, () => {
    if (window.setTimeout === ours) window.setTimeout = own;
    hurried = false;
  }, 2 * PAUSE_MS);
}

export default function () {
  window.tokenpathsKeys?.();  // one pair of ears, however often the page is drawn anew
  // Of its own: what is torn down late must not take those of the next drawing with it.
  const ears = { keydown: pressed, focusin: arrived, focusout: left, paste: pasted, pointerdown: used, pointerup: hurry };
  const worn = new AbortController();
  for (const [name, hear] of Object.entries(ears))
    document.addEventListener(name, hear, { capture: true, signal: worn.signal });
  const early = document.activeElement?.closest?.(`${TRIGGER}[aria-expanded="true"]`);
  if (early) enter(early);  // opened before anybody listened
  window.tokenpathsKeys = () => worn.abort();
  return window.tokenpathsKeys;
}
