// Small things in a wall: patches, pictures or tokens in context; a click opens one. textContent only.
export default function ({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector(".wall");
  root.replaceChildren();
  root.className = `wall wall-${data.kind}`;
  for (const [name, value] of Object.entries(data.colours)) root.style.setProperty(`--tp-${name}`, value);
  // Columns inside a box that scrolls: columns of a box of limited height would go on to the right.
  const list = data.kind === "context" ? root.appendChild(document.createElement("div")) : root;
  for (const item of data.items) {
    const button = document.createElement("button");
    button.title = item.title;
    button.setAttribute("aria-label", item.title);
    if (data.kind === "context") {
      button.dir = "auto";
      button.append(document.createTextNode(item.before));
      const mark = document.createElement("mark");
      mark.textContent = item.text.trim() ? item.text : item.shown;
      button.append(mark, document.createTextNode(item.after));
    } else {
      if (item.image) {
        const picture = document.createElement("img");
        picture.alt = "";
        picture.src = item.image;
        button.append(picture);
      } else {
        const snippet = document.createElement("span");
        snippet.className = "snippet";
        snippet.dir = "auto";
        snippet.textContent = item.snippet || "";
        button.append(snippet);
      }
      if (item.caption) {
        const caption = document.createElement("span");
        caption.className = "caption";
        caption.textContent = item.caption;
        button.append(caption);
      }
    }
    button.addEventListener("click", () => setTriggerValue("open", { sample: item.sample, token: item.token ?? null }));
    list.append(button);
  }
}
