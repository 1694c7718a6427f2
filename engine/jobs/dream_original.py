"""Loads the image or text that a dream starts from, from wherever the request names it.

Shapes: T tokens, S steps, K slots.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from tokenpaths.engine.base.files import write_atomically
from tokenpaths.engine.data.confined_pictures import decode_apart
from tokenpaths.engine.data.images import model_view
from tokenpaths.engine.data.normalisation import normalise
from tokenpaths.engine.dream.dream_request import DreamRequest, Group, PathTarget
from tokenpaths.engine.dream.dream_state import STATE
from tokenpaths.engine.jobs.dream_check import check_group
from tokenpaths.engine.jobs.dream_source import find_text, row_of
from tokenpaths.engine.tracing.loaded_model import LoadedModel

if TYPE_CHECKING:
    from tokenpaths.engine.jobs.registry import JobContext

FILE = "original.png"
TEXT_FILE = "original.txt"
RIBBON_FILE = "ribbon.json"
CHOICES_FILE = "choices.json"


def original_image(
    request: DreamRequest, folder: Path, context: JobContext, loaded: LoadedModel
) -> Float[Tensor, "3 N N"]:
    """The image in [0, 1] at the model's input size; stored in the job's folder when first read."""
    file = folder / FILE
    if not file.is_file():
        view = model_view(_find_image(request, context), loaded.checkpoint.config.image_size)
        buffer = io.BytesIO()
        Image.fromarray(view).save(buffer, format="PNG")
        write_atomically(file, buffer.getvalue())
    with Image.open(file, formats=("PNG",)) as image:
        levels = torch.frombuffer(bytearray(image.convert("RGB").tobytes()), dtype=torch.uint8)
        return levels.view(image.height, image.width, 3).permute(2, 0, 1).float() / 255


def original_choices(
    request: DreamRequest, folder: Path, context: JobContext, loaded: LoadedModel, original: Float[Tensor, "3 N N"]
) -> Int[Tensor, "T S K"]:
    """The modules that the patches of an image chose; those of a sample of a run of this model as the run has them.

    A run keeps large pictures scaled, and the model's pass over such a one chooses a little otherwise: the group of a
    path would not be the one that the run shows. They are kept in the job's folder: another run may have this name when
    the job goes on.
    """
    file = folder / CHOICES_FILE
    # Kept choices of a dream that goes on are those that it began with.
    if request.sample is not None and not file.is_file() and not (folder / STATE).is_file():
        with context.open_run(str(request.run)) as run:
            unedited = not json.loads(run.row["config"]).get("controls")
            if unedited and run.row["checkpoint_sha256"] == loaded.sha256:
                ribbons = [token["ribbon"] for token in run.sample(request.sample)["tokens"]]
                write_atomically(file, json.dumps(ribbons).encode())
    if file.is_file():
        ribbons = json.loads(file.read_bytes())
        return torch.tensor(ribbons, dtype=torch.long).view(len(ribbons), loaded.num_steps, -1)
    with torch.no_grad():
        ids_TSK = loaded.model.trace(normalise(original[None]).to(loaded.device)).module_ids[0].long().cpu().clone()
    write_atomically(file, json.dumps(ids_TSK.tolist()).encode())
    return ids_TSK


def _find_image(request: DreamRequest, context: JobContext) -> Image.Image:
    if request.sample is not None:
        with context.open_run(str(request.run)) as run:
            return decode_apart(run.image(request.sample))
    if request.inbox is not None:
        return decode_apart(context.inbox_file(request.inbox, field="inbox").read_bytes())
    image = row_of(request, "vision").image
    assert image is not None, "a vision set yields images"
    return image


def original_text(request: DreamRequest, folder: Path, context: JobContext) -> str:
    """The text that the request names."""
    file = folder / TEXT_FILE
    if not file.is_file():
        write_atomically(file, find_text(request, context).encode())
    return file.read_bytes().decode()  # as it was: ``read_text`` would change the line ends of other systems


def wanted_ribbon(request: DreamRequest, folder: Path, context: JobContext) -> Tensor:
    """The path (S) or (S, K) that the request names.

    One of a rank is from the request's run, and kept in the job's folder: another path may have this rank when the job
    goes on.
    """
    assert isinstance(request.target, PathTarget), "called for these alone"
    if request.target.rank is None:
        return torch.tensor(request.target.ribbon, dtype=torch.long)
    file = folder / RIBBON_FILE
    if not file.is_file():
        with context.open_run(str(request.run)) as run:
            found = run.paths(limit=1, offset=request.target.rank - 1)["paths"]
        write_atomically(file, json.dumps(found[0]["ribbon"]).encode())
    ribbon = json.loads(file.read_bytes())
    return torch.tensor(ribbon, dtype=torch.long).view(len(ribbon), -1)


def members(
    group: Group, ids: Int[Tensor, "T S K"] | None, num_tokens: int, seed: int, first: int = 0
) -> list[int] | None:
    """The tokens of a group, counted from the first dreamt token; None: all.

    ``ids`` are the choices of the dreamt tokens; the first of them is number ``first`` of the original, and the group
    uses the numbering of the original.
    """
    check_group(group, range(first, first + num_tokens), "tokens that are dreamt")
    if group.patches is not None:
        return sorted(number - first for number in set(group.patches))
    if group.draw is not None:
        generator = torch.Generator().manual_seed(seed)
        return sorted(torch.randperm(num_tokens, generator=generator)[: group.draw].tolist())
    if group.like is not None:
        assert ids is not None, "a request with like has an original"
        paths = ids.sort(dim=-1).values.flatten(1)
        return (paths == paths[group.like - first]).all(dim=1).nonzero().squeeze(1).tolist()
    return None
