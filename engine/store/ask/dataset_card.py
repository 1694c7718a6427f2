"""The card of a run as a Hugging Face data set: what it is of, how it was made, what each column means."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from tokenpaths.engine.store.ask.run_file import RunFile

_SHARED: Final = {
    "sample": "number of the sample, from 0",
    "label": "label of the sample (class, domain, language …); null without one",
    "loss": "cross-entropy, in nats",
    "gate_entropy": "mean entropy of the router's probabilities over steps, in nats",
    "compute": "of the path: active (not identity) slots / all slots, 0 to 1",
    "reuse": "of the path: 1 − distinct active modules / active visits",
}
COLUMNS: Final[dict[str, dict[str, str]]] = {
    "samples": {
        **_SHARED,
        "prediction": "what the model predicts for the sample; null where it does not",
        "confidence": "probability of that prediction",
        "loss": "loss of the sample: of its class, or the mean over its tokens, in nats",
        "compute": "mean of the tokens' compute",
        "reuse": "mean of the tokens' reuse",
        "num_tokens": "tokens (patches) of the sample",
        "num_distinct_paths": "different paths that they take",
        "text": "the text",
        "image": "the picture as the model saw it (PNG)",
        "grid_rows": "patches from top to bottom",
        "grid_cols": "patches from left to right",
        "source": "file or row that the sample came from",
    },
    "tokens": {
        "sample": _SHARED["sample"],
        "token": "position of the token in its sample, from 0",
        "token_id": "its number in the vocabulary",
        "text": "text of that number",
        "predicted_id": "number of the token that the model thinks likeliest to follow",
        "predicted_text": "text of that number",
        "row": "row of the patch, from the top",
        "col": "column of the patch, from the left",
        "char_start": "first character of the token in the text of its sample",
        "char_end": "character behind its last one",
        "region": "what the patch shows, where that is known",
        "label": _SHARED["label"],
        "rank": "rank of its path by frequency, 1 = most frequent; joins with the split `paths`",
        "ribbon": "module ids by step and slot (S lists of K), slots by falling weight",
        "weights": "weights of those modules, rounded to 8 bits as the run keeps them; 1/K where its log held none",
        "compute": _SHARED["compute"],
        "reuse": _SHARED["reuse"],
        "gate_entropy": _SHARED["gate_entropy"],
        "loss": "loss of predicting the next token, in nats; null where there is none",
        "flops": "floating-point operations of the modules that it takes",
    },
    "paths": {
        "rank": "rank by frequency, 1 = most frequent",
        "ribbon": "module ids by step and slot (S lists of K); the slots of a path have no order",
        "count": "tokens that take it",
        "cdf": "share of tokens that take it or a more frequent one",
        "compute": _SHARED["compute"],
        "reuse": _SHARED["reuse"],
        "top_label": "label of most of its tokens",
        "top_label_share": "share of them",
    },
    "modules": {
        "step": "step that can pick it; null: any",
        "module": "its id, as in ribbons",
        "name": "its name in the model",
        "kind": "transformer, attention, mlp, expert, identity …",
        "num_params": "parameters",
        "flops_per_token": "multiply-adds × 2 of its projections for a token",
    },
}
"""split → column → meaning, in the order of the columns of ``tokens``"""

_MADE: Final = """\
## How it was made

The model was run over every sample, and each decision of its routers was recorded, with
Tokenpaths {engine_version}. Means of samples were computed before tokens
were rounded: losses and entropies of tokens are kept to 1/4000 of 1 + |x|, weights to 8 bits.

```python
from datasets import load_dataset, load_from_disk

run = load_from_disk("FOLDER")                       # a DatasetDict: samples, tokens, paths, modules
tokens = load_dataset("FOLDER", "tokens")["train"]   # the same by its name, from disk or from the hub
```

## Licence

Left to whoever publishes this: it depends on the data and on the model. Texts and pictures of the samples are in it.

## Citation

Cite the model and the data by their own papers, and Tokenpaths as

```bibtex
@software{{tokenpaths,
  title = {{Tokenpaths: see, measure, compare and edit the paths of tokens through routed neural networks}},
  author = {{{{The Tokenpaths authors}}}},
  version = {{{engine_version}}}
}}
```
"""


def dataset_card(run: RunFile, features: Mapping[str, Mapping[str, Any]], num_rows: Mapping[str, int]) -> str:
    """README.md with its YAML header.

    Args:
        features: split → column → feature of the ``datasets`` library.
        num_rows: of each split.
    """
    row = run.row
    about = {
        "model": row["model"],
        "family": row["family"],
        "checkpoint (SHA-256)": row["checkpoint_sha256"] or "unknown",
        "data": f"{row['dataset']}, split {row['split']}",
        "samples, tokens": f"{row['num_samples']:,}, {row['num_tokens']:,}",
        "steps, modules, top-k": f"{row['num_steps']}, {run.num_modules}, {row['top_k']}",
        "different paths": f"{row['num_paths']:,}",
        "run": f"{run.run_id}, made {row['created_at']}",
    }
    facts = "".join(f"| {name} | {_cell(value)} |\n" for name, value in about.items())
    tables = "".join(_split(split, columns, num_rows[split]) for split, columns in features.items())
    semantics = json.dumps(json.loads(row["weight_semantics"]), ensure_ascii=False)
    return (
        f"{_header(run, features)}\n# Paths of tokens: {_cell(row['model'])} on {_cell(row['dataset'])}\n\n"
        f"| | |\n|---|---|\n{facts}\nWeights: `{semantics.replace('`', '')}`\n\n{tables}"
        f"{_MADE.format(engine_version=_cell(row['engine_version']))}"
    )


def _header(run: RunFile, features: Mapping[str, Mapping[str, Any]]) -> str:
    """YAML that the hub and ``load_dataset`` read. Strings are JSON, which is YAML."""
    name = json.dumps(f"Paths of tokens: {run.row['model']} on {run.row['dataset']}", ensure_ascii=False)
    lines = ["---", f"pretty_name: {name}", "# license: left to whoever publishes this"]
    lines += ["tags:", "- tokenpaths", "- routing", "- mixture-of-experts", "- interpretability", "configs:"]
    for split in features:
        lines += [f"- config_name: {split}", f"  data_files: {split}/*.arrow"]
    lines.append("dataset_info:")
    for split, columns in features.items():
        lines += [f"- config_name: {split}", "  features:"]
        for column, feature in columns.items():
            lines.append(f"  - name: {column}")
            lines += _yaml(feature, "    ")
    return "\n".join([*lines, "---", ""])


def _yaml(feature: Any, indent: str) -> list[str]:
    if isinstance(feature, list):
        inner = feature[0]
        if isinstance(inner, list):
            return [f"{indent}sequence:", *_yaml(inner, indent + "  ")]
        return [f"{indent}sequence: {inner['dtype']}"]
    return [f"{indent}dtype: {'image' if feature['_type'] == 'Image' else feature['dtype']}"]


def _split(split: str, columns: Mapping[str, Any], num_rows: int) -> str:
    rows = "".join(f"| `{name}` | {COLUMNS[split].get(name, '')} |\n" for name in columns)
    return f"## {split}: {num_rows:,} rows\n\n| column | meaning |\n|---|---|\n{rows}\n"


def _cell(value: Any) -> str:
    """A value in a cell of Markdown: one line, no marks of tables, addresses or HTML."""
    text = " ".join(str(value).split())
    return "".join(f"\\{c}" if c in "\\|`*_[]<>#!" else c for c in text)
