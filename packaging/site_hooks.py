"""Hooks of mkdocs: pages that are generated from the code, links that lead out of ``docs/``, files that no page uses.

The pages of the reference hold a line ``<!-- generated: NAME -->``; it is replaced when the site is built, so that the
reference cannot fall behind the code.
"""

from __future__ import annotations

import inspect
import json
import posixpath
import re
import tempfile
import textwrap
from importlib.metadata import files
from pathlib import Path
from typing import Any, get_args

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#]+)(#[^)]*)?\)")
PICTURE = re.compile(r"^!\[([^\]]+)\]\((\S*screenshots/\S+)\)$", re.MULTILINE)
"""a picture of the page on a line of its own: site.css shows its top, and a click the whole"""
MEDIA = ("screenshots", "figures", "dreams", "drawings")
SPARE = ("404.html", "sitemap.xml*", "assets/**/*.map", "assets/javascripts/lunr/**/*")
"""what needs the address of a web site, what only debuggers read, search in other languages"""
MARK = re.compile(r"<!-- generated: (\w+) -->")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """The text of a page: generated parts filled in, names of files outside ``docs/`` as code instead of as links."""
    text = MARK.sub(lambda match: GENERATED[match[1]](), markdown)
    text = PICTURE.sub(r"[![\1](\2){.top}](\2)", text)
    folder = posixpath.dirname(page.file.src_uri)

    def plain(match: re.Match[str]) -> str:
        target = match[2]
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        inside = posixpath.normpath(posixpath.join(folder, target))
        if not inside.startswith(".."):
            return match[0]
        words = match[1]
        return (
            words
            if words.startswith("`")
            else f"{words} (`{posixpath.normpath(posixpath.join('docs', folder, target))}`)"
        )

    return LINK.sub(plain, text)


def on_page_content(html: str, **_: Any) -> str:
    """Long names in tables may break after ``_`` and ``/``."""

    def breakable(cell: re.Match[str]) -> str:
        return re.sub(r"<code>([^<]+)</code>", lambda code: re.sub(r"(?<!<)([_/])(?=\w)", r"\1<wbr>", code[0]), cell[0])

    return re.sub(r"<td.*?</td>", breakable, html, flags=re.DOTALL)


def on_post_build(*, config: Any) -> None:
    """Leave out what no page uses, for the site travels in the wheel; put the theme's licence beside its scripts."""
    site = Path(config["site_dir"])
    used = {
        (page.parent / target).resolve()
        for page in site.rglob("*.html")
        for target in re.findall(r'(?:href|src)="([^"#:?]+)"', page.read_text(encoding="utf-8"))
    }
    unused = [file for folder in MEDIA for file in (site / folder).rglob("*") if file.resolve() not in used]
    for file in [*unused, *(file for pattern in SPARE for file in site.glob(pattern))]:
        if file.is_file():
            file.unlink()
    licence = next(
        file for file in files("mkdocs-material") or [] if file.name == "LICENSE" and "licenses" in file.parts
    )
    (site / "assets" / "LICENSE").write_text(licence.read_text(encoding="utf-8"), encoding="utf-8")


def command_line() -> str:
    """Every command with its arguments and options, from the parser itself."""
    import typer

    from tokenpaths.cli.main import make_app

    group: Any = typer.main.get_command(make_app())
    parts = []
    for name, command in group.commands.items():
        parts.append(_command(f"tokenpaths {name}", command))
        parts += [
            _command(f"tokenpaths {name} {inner}", sub) for inner, sub in getattr(command, "commands", {}).items()
        ]
    return "\n".join(parts)


def _command(name: str, command: Any) -> str:
    rows = []
    for parameter in command.params:
        option = parameter.param_type_name == "option"
        names = ", ".join(f"`{part}`" for part in (*parameter.opts, *parameter.secondary_opts))
        words = " ".join((getattr(parameter, "help", None) or "").split()).replace("|", "\\|")
        rows.append(f"| {names if option else f'`{parameter.name.upper()}`'} | {words} |")
    words = (command.help or "").replace("\b", "").strip()
    words = re.sub(r"^Example: (.+)$", r"Example: `\1`", words, flags=re.MULTILINE)
    table = "\n".join(["", "| argument, option | what it does |", "|---|---|", *rows, ""]) if rows else ""
    return f"\n## `{name}`\n\n{words}\n{table}"


def file_format() -> str:
    """Every view and table of a run file with its columns, from a run that is made and sealed for it."""
    import duckdb
    import numpy as np

    import tokenpaths
    from tokenpaths.engine.store.file.schema import DRAWN_TABLES

    ids = np.stack([np.roll(np.arange(8), token)[:4].reshape(2, 2) for token in range(40)])
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder, "log.npz"), ids=ids, weights=np.full(ids.shape, 0.5), num_experts=8)
        with tokenpaths.import_log(Path(folder, "log.npz"), run="shown", folder=folder) as run:
            file = run.file
        with duckdb.connect(str(file), read_only=True) as con:
            tables, views = (
                dict(
                    con.execute(
                        f"SELECT {kind}_name, sql FROM duckdb_{kind}s() WHERE NOT internal ORDER BY 1"
                    ).fetchall()
                )
                for kind in ("table", "view")
            )
            columns = {
                view: ", ".join(f"`{name}` {kind}" for name, kind, *_ in con.execute(f"DESCRIBE {view}").fetchall())
                for view in ("token", "path", "path_member", "token_sample")
            }
    rows = "\n".join(f"| `{view}` | {listed} |" for view, listed in columns.items())
    lines = [
        textwrap.fill(" ".join(sql.split()), 88, subsequent_indent="    ", break_on_hyphens=False)
        for sql in [*tables.values(), *views.values()]
    ]
    statements = "\n".join(lines)
    drawn = ", ".join(f"`{name}`" for name in DRAWN_TABLES)
    return (
        f"For two steps, top-2 and eight modules:\n\n| view | columns |\n|---|---|\n{rows}\n\n"
        f"```sql\n{statements}\n```\n\nRuns of a million tokens or more also have {drawn}, which hold together what "
        "pages read, and `token_sample` as a table; runs that were made of counts have `load`.\n"
    )


def plugin_example() -> str:
    """The example of a log format, and how its package declares it."""
    return _example("pyproject.toml", "tokenpaths_routelog.py", "served.routelog")


def plugin_family() -> str:
    """The example of a family of models."""
    return _example("tokenpaths_halves.py", "tokenpaths_halves_model.py")


def plugin_job() -> str:
    """The example of a kind of job."""
    return _example("tokenpaths_path_table.py")


def _example(*names: str) -> str:
    """Files of docs/plugin_example."""
    folder = ROOT / "docs" / "plugin_example"
    kinds = {".toml": "toml", ".py": "python"}
    return "\n".join(
        f"`{name}`:\n\n```{kinds.get(Path(name).suffix, 'text')}\n{(folder / name).read_text()}```\n" for name in names
    )


def job_requests() -> str:
    """The fields of each kind's request, from its model."""
    from tokenpaths.engine.jobs.registry import SHIPPED_KINDS, find_kind

    return "\n".join(f"### `{kind}`\n\n{_fields(find_kind(kind).Request)}\n" for kind in SHIPPED_KINDS)


def _fields(model: Any) -> str:
    schema = model.model_json_schema()
    rows = ["| field | default | what it is |", "|---|---|---|"]
    for name, about in schema["properties"].items():
        needed = name in schema.get("required", ())
        default = about.get("default")
        shown = "" if default is None else f"`{'{}' if isinstance(default, dict) else json.dumps(default)}`"
        words = about.get("description") or _choices(model.model_fields[name].annotation)
        rows.append(f"| {f'**`{name}`**' if needed else f'`{name}`'} | {shown} | {words} |")
    return "\n".join(rows).replace("``", "`")


def _choices(annotation: Any) -> str:
    """What an object holds, or which objects there are."""
    models = [one for one in (annotation, *get_args(annotation)) if hasattr(one, "model_fields")]
    models += [one for inner in get_args(annotation) for one in get_args(inner) if hasattr(one, "model_fields")]
    several = []
    for one in models:
        names = [name for name in one.model_fields if name != "of"]
        of = get_args(one.model_fields["of"].annotation) if "of" in one.model_fields else ()
        several.append(" ".join([*(f'`"of": "{kind}"`' for kind in of), ", ".join(f"`{name}`" for name in names)]))
    return "object: " + "; or ".join(several) if several else ""


def notebooks() -> str:
    """The cells of the notebooks, one below the other."""
    shown = []
    for name in ("first_flow", "dna_researcher", "moe_engineer"):
        for cell in json.loads((ROOT / "docs" / "notebooks" / f"{name}.ipynb").read_text())["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] == "code":
                shown.append(f"```python\n{source}\n```")
            else:
                shown.append(re.sub(r"^#", "##", source, flags=re.MULTILINE).replace("](../", "]("))
    return "\n\n".join(shown)


def python_names() -> str:
    """What ``import tokenpaths`` gives, for mkdocstrings to describe."""
    import tokenpaths

    names = [name for name in tokenpaths.__all__ if name not in ("__version__", "charts")]
    names.sort(key=lambda name: (name[0].isupper(), name))  # functions, then classes
    return "\n\n".join(
        f"::: {thing.__module__}.{thing.__qualname__}" for thing in (getattr(tokenpaths, n) for n in names)
    )


def chart_names() -> str:
    """Every function of ``tokenpaths.charts`` with what it takes first and what it draws."""
    from tokenpaths import charts

    rows = ["| function | what it draws or gives |", "|---|---|"]
    for name in charts.__all__:
        if not callable(thing := getattr(charts, name)):
            continue
        taken = [p.name for p in inspect.signature(thing).parameters.values() if p.default is inspect.Parameter.empty]
        words = " ".join(inspect.cleandoc(thing.__doc__ or "").split("\n\n")[0].split())
        rows.append(f"| `{name}({', '.join(taken)})` | {words.replace('``', '`').replace('|', chr(92) + '|')} |")
    return "\n".join([*rows, ""])


def questions() -> str:
    """Every question to a run with its arguments, from its declaration."""
    from tokenpaths.engine.store.ask.questions import QUESTIONS

    return "\n".join(_question(question) for question in QUESTIONS)


def _question(question: Any) -> str:
    given = {name: parameter.default for name, parameter in question.parameters.items() if name != "labels"}
    shown = [name if default is inspect.Parameter.empty else f"{name}={default!r}" for name, default in given.items()]
    places = [f"`GET /api/v1/runs/{{run}}{'/' if route.path else ''}{route.path}`" for route in question.routes]
    places += [f"`run.frames.{name}`" for name in question.frames]
    rows = []
    for name in given:
        argument = question.argument(name)
        words = (argument.description if argument else None) or ""
        if argument is not None and argument.le is not None and argument.ge is not None and argument.le < 2**31 - 1:
            words += f" ({argument.ge} to {argument.le:,})"
        rows.append(f"| `{name}` | {words.replace('|', chr(92) + '|')} |")
    table = "\n".join(["", "| argument | what it is |", "|---|---|", *rows, ""]) if rows else ""
    doc = inspect.cleandoc(question.function.__doc__ or "").split("\n\nArgs:")[0].split("\n\nReturns:")[0]
    doc = doc.split("\n\nRaises:")[0].replace("``", "`")
    call = textwrap.fill(f"run.{question.name}({', '.join(shown)})", 84, subsequent_indent="    ")
    return f"\n### `{question.name}`\n\n```python\n{call}\n```\n\n{doc}\n\nAlso {', '.join(places)}.\n{table}"


def routes() -> str:
    """Every route of the REST API, from its OpenAPI description."""
    from tokenpaths.backend.app import create_app
    from tokenpaths.backend.settings import load_settings

    with tempfile.TemporaryDirectory() as folder:
        schema = create_app(load_settings(data_dir=Path(folder))).openapi()
    rows = [
        f"| `{method.upper()}` `{path}` | {' '.join(route['description'].split()).replace('|', chr(92) + '|')} |"
        for path, methods in schema["paths"].items()
        for method, route in methods.items()
    ]
    return "\n".join(["| request | what it does |", "|---|---|", *rows, ""])


GENERATED = {
    "chart_names": chart_names,
    "command_line": command_line,
    "file_format": file_format,
    "job_requests": job_requests,
    "notebooks": notebooks,
    "plugin_example": plugin_example,
    "plugin_family": plugin_family,
    "plugin_job": plugin_job,
    "python_names": python_names,
    "questions": questions,
    "routes": routes,
}
