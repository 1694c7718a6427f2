// Files that are too large for the page's upload are stopped before they are sent: Python says in words what they are.
// Streamlit itself would show an icon whose reason is a tooltip.
const GUARD = { limit: Infinity, refuse: null };
const HEAD_BYTES = 64;

function guardFiles(files, event, input) {
  const large = [...(files ?? [])].find((file) => file.size > GUARD.limit);
  if (!large || !GUARD.refuse) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  if (input) input.value = "";
  const { refuse } = GUARD;
  large.slice(0, HEAD_BYTES).arrayBuffer().catch(() => new ArrayBuffer(0)).then((head) => refuse({ name: large.name,
    size: large.size, head: [...new Uint8Array(head)].map((byte) => byte.toString(16).padStart(2, "0")).join("") }));
}

const inUploader = (event) => event.composedPath().some((one) => one.dataset?.testid === "stFileUploader");

function guardDrops(limit, refuse) {
  const first = GUARD.refuse === null;
  Object.assign(GUARD, { limit, refuse });
  if (!first) return;
  document.addEventListener("drop", (event) => inUploader(event) && guardFiles(event.dataTransfer?.files, event), true);
  document.addEventListener("change", (event) =>
    event.target.type === "file" && inUploader(event) && guardFiles(event.target.files, event, event.target), true);
}
