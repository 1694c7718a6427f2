// Streamlit lays what a button opens over the end of the page: the tab key does not lead there, and leaving the button
// closes it. Opened by key, the focus goes inside; tab goes round inside; escape gives the focus back to the button.
const TRIGGER = '[data-testid="stPopoverButton"]';
const OPENED = '[data-testid="stPopoverBody"]';
const STOPS = 'a[href], button, input, select, textarea, [tabindex]';
const PATIENCE_MS = 10000;  // what stands inside is asked for when it is opened

const drawn = (one) => one.getClientRects().length > 0;
const stops = (body) => [...body.querySelectorAll(STOPS)].filter((one) =>
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

function pressed(event) {
  waiting += 1;
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

const used = () => { waiting += 1; };

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
  const ears = { keydown: pressed, focusout: left, pointerdown: used, pointerup: hurry };
  for (const [name, hear] of Object.entries(ears)) document.addEventListener(name, hear, true);
  const early = document.activeElement?.closest?.(`${TRIGGER}[aria-expanded="true"]`);
  if (early) enter(early);  // opened before anybody listened
  window.tokenpathsKeys = () => {
    for (const [name, hear] of Object.entries(ears)) document.removeEventListener(name, hear, true);
  };
  return window.tokenpathsKeys;
}
