"""Generator of ``docs/figures.md``: each figure of the DNA paper with its view, REST call, command and test.

    python -m tokenpaths.frontend.figures.page > docs/figures.md
    python -m tokenpaths.frontend.figures.page --pictures figures figures-of-texts    # small copies into docs/figures

The folders are those of the two commands on that page, over the demo's runs.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from tokenpaths.frontend.figures import KINDS

HEAD = """# Figures

Every figure of *Towards Distributed Neural Architectures* from any run that allows it, and the charts that the page has
for what paths know and for one family alone: blocks that light up and what they cost (RayTracing), shards and shared
modules (DiPaCo), load, domains, words and partners of experts (mixtures of experts), connections (H-Model), gates
(Directional Routing). One command draws them ready for print, with the exact numbers:

```sh
tokenpaths figures --run scenes-dna-vision-top1 --out figures
tokenpaths figures --run texts-dna-text-top1 --out figures-of-texts --only fig1,fig8,fig18
tokenpaths report --run scenes-dna-vision-top1 --out report.html
```

Each figure is an SVG and a PNG (300 dots per inch) of one or two columns of `--width` (89 mm; two are 183 mm) with
8-point type, and the data behind it as CSV. `index.md` and `index.json` beside them have the captions with their
numbers, the formulas, and run, model, checkpoint hash and version. What a run does not allow is listed there with the
reason. `--format svg,png,csv,json`: `json` has numbers, data and Vega-Lite in one file. A folder that holds anything
else is left alone.

On the page, *Save* under each chart gives the same picture as SVG and PNG, its data as CSV (several tables:
a ZIP file with a CSV each), and the link to the view.
*Export and link* beside the run gives the whole run as one HTML page that opens offline, as `tokenpaths report` and
`GET /runs/{run}/report` do.

## Which figure is where

Views are queries of the page's address (with `run=` the run); REST paths stand below `/api/v1`.

| paper | what it shows | view | REST | command | test |
|---|---|---|---|---|---|
"""

FOOT = """
17 is figure 3 of an untrained model: `tokenpaths trace --model dna-vision-top1 --data bundled:photos --untrained` makes
such a run. 4, 5, 14 and 15 take finished dreams of the run's model ([dreams](dreams.md)); `--dream` dreams first.

“Top 1 %” in a sheet of samples means that they are drawn from just that. Where a run is so small that a band is not
within a tenth of its percentage, the line says what it is, such as “top 6 of 240”. Bands and levels are taken from all
samples of the run; *skip against reuse* draws at most 20,000 points, and its caption then says of how many. A second
run (`--beside`) that does not fit leaves out only what compares the two; the index says why.

## Some of them, from the bundled samples

Made by the commands above from the runs of `tokenpaths up --demo`, here of `dna-vision-top2-skip`, which comes with
`tokenpaths-models` ([which models come with what](models.md)); `--beside scenes-dna-vision-top1` compares the two.

| | |
|---|---|
"""

WIDE = 900
"""width in pixels of a copied PNG"""
SHOWN = (
    ("scenes-flow.png", 0, "fig2-flow.png", "Figure 2: flow of tokens, dna-vision-top2-skip on scenes"),
    ("scenes-paths.svg", 0, "fig1cd-paths.svg", "Figure 1c: paths by rank, untrained twin and independent steps"),
    ("scenes-tinted.png", 0, "fig1e-tinted.png", "Figure 1e: patches in the colour of their path’s CDF"),
    ("scenes-patches.png", 0, "fig3-patches.png", "Figure 3: patches that share a path"),
    ("scenes-compute-samples.png", 0, "fig6-samples.png", "Figure 6: samples of most, middling and least compute"),
    ("scenes-beside.svg", 0, "fig7-beside.svg", "Figure 7: reuse of the same samples in two runs"),
    ("texts-tokens.png", 1, "fig1f-tokens.png", "Figure 9 (right): tokens that share a path, dna-text-top1 on texts"),
    ("texts-token-flow.png", 1, "fig18-token-flow.png", "Figure 18: every token of one text on its way"),
)
"""name in docs/figures, source folder and file, description"""


def figures_page() -> str:
    """The page as Markdown."""
    lines = [HEAD.rstrip("\n")]
    for kind in KINDS:
        calls = ", ".join(f"`{call.strip()}`" for call in kind.rest.split(","))
        lines.append(
            f"| {', '.join(kind.paper) or '–'} | {kind.shows} | `?{kind.view}` | {calls} | "
            f"`tokenpaths figures --only {kind.name}` | `{kind.test}` |"
        )
    cells = [f"![{words}](figures/{name})<br>{words}" for name, _, _, words in SHOWN]
    rows = [f"| {left} | {right} |" for left, right in zip(cells[::2], cells[1::2], strict=True)]
    return "\n".join(lines) + "\n" + FOOT + "\n".join(rows) + "\n"


def copy_pictures(folders: list[Path], out: Path) -> None:
    """Copy the listed figures from the folders of the two commands; PNGs are scaled down and reduced to 256 colours."""
    from PIL import Image

    out.mkdir(parents=True, exist_ok=True)
    for name, folder, file, _ in SHOWN:
        if name.endswith(".svg"):
            shutil.copyfile(folders[folder] / file, out / name)
            continue
        picture = Image.open(folders[folder] / file).convert("RGB")
        small = picture.resize((WIDE, round(picture.height * WIDE / picture.width)), Image.Resampling.LANCZOS)
        small.quantize(256, dither=Image.Dither.NONE).save(out / name, optimize=True)


def main() -> None:
    """Print the page, or copy its pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", nargs=2, type=Path, metavar="FOLDER")
    options = parser.parse_args()
    if options.pictures:
        copy_pictures(options.pictures, Path("docs/figures"))
    else:
        print(figures_page(), end="")


if __name__ == "__main__":
    main()
