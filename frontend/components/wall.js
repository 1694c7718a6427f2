// Small things in a wall: patches, pictures or tokens in context; a click opens one. textContent only.
// A wall is one stop of the tab key; arrows lead from one thing to the next.
// The next and the last thing straight below and above, in as many columns as there are room for now.
const below = (buttons, index) => buttons.findIndex((one, place) =>
  place > index && one.offsetTop > buttons[index].offsetTop && one.offsetLeft >= buttons[index].offsetLeft);
const above = (buttons, index) => buttons.findLastIndex((one, place) =>
  place < index && one.offsetTop < buttons[index].offsetTop && one.offsetLeft <= buttons[index].offsetLeft);

// Draws `data` (wall_data.py) into `root`; a click calls open({sample, token or null}).
function drawWall(root, data, open) {
  root.replaceChildren();
  root.className = `wall wall-${data.kind}`;
  root.setAttribute("role", "group");
  root.setAttribute("aria-label", data.label);
  for (const [name, value] of Object.entries(data.colours)) root.style.setProperty(`--tp-${name}`, value);
  // Columns inside a box that scrolls: columns of a box of limited height would go on to the right.
  const list = data.kind === "context" ? root.appendChild(document.createElement("div")) : root;
  const buttons = [];
  data.items.forEach((item, index) => {
    const button = document.createElement("button");
    button.title = item.title;
    button.setAttribute("aria-label", item.title);
    if (data.kind === "context") {
      button.dir = "auto";
      button.append(document.createTextNode(item.before));
      const mark = document.createElement("mark");
      mark.textContent = /[\p{L}\p{N}\p{P}\p{S}]/u.test(item.text) ? item.text : item.shown;
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
    button.addEventListener("click", () => open({ sample: item.sample, token: item.token ?? null }));
    button.tabIndex = index === 0 ? 0 : -1;
    button.addEventListener("focus", () => {
      for (const one of buttons) one.tabIndex = one === button ? 0 : -1;
    });
    button.addEventListener("keydown", (event) => {
      const to = { ArrowRight: index + 1, ArrowDown: below(buttons, index), ArrowLeft: index - 1,
        ArrowUp: above(buttons, index), Home: 0, End: buttons.length - 1 }[event.key];
      if (to === undefined || !buttons[to]) return;
      event.preventDefault();
      buttons[to].focus();
    });
    buttons.push(button);
    list.append(button);
  });
}
