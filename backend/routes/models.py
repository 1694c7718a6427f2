"""Routes of the models that can be traced, and of the place of a Hugging Face checkpoint."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path as FilePath
from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.concurrency import run_in_threadpool

from tokenpaths.backend.http.redact_paths import redact
from tokenpaths.backend.http.uploads import receive_json
from tokenpaths.backend.problems import Problem, documented
from tokenpaths.backend.routes.parameters import json_object
from tokenpaths.backend.schemas.models import ModelDetails, ModelList
from tokenpaths.backend.services import Shared
from tokenpaths.backend.settings import is_loopback
from tokenpaths.engine.adapters.huggingface.config import (
    CONFIG,
    PREFIX,
    is_huggingface,
    is_model_name,
    layout_of,
    read_config,
)
from tokenpaths.engine.adapters.huggingface.elsewhere import note_elsewhere
from tokenpaths.engine.base.errors import UserError

router = APIRouter(prefix="/models", tags=["models"], responses=documented(400, 401, 403, 422, 500, 503))


@router.get("", response_model=ModelList, response_model_exclude_unset=True)
async def list_models(services: Shared) -> ModelList:
    """All models that the worker finds, broken ones with their `problem`."""
    found = await services.worker.models()
    rows = [row | {"problem": redact(row["problem"])} if row.get("problem") else row for row in found["models"]]
    return ModelList.model_validate(found | {"models": rows})


@router.get("/{model}", response_model=ModelDetails, response_model_exclude_unset=True, responses=documented(404))
async def show_model(services: Shared, model: Annotated[str, Path(description="Name of the model")]) -> ModelDetails:
    """One model with its configuration, its card and what may be changed of it."""
    if not is_model_name(model):
        raise Problem(404, "no-such-model", f"{model[:80]!r} cannot be the name of a model.", field="model")
    return ModelDetails.model_validate(await services.worker.model(model))


MOST_FOLDER_BYTES = 8_000
FOLDER = json_object(folder={"type": "string", "description": "The folder that holds its config.json"})


@router.put(
    "/{model}/folder",
    response_model=ModelDetails,
    response_model_exclude_unset=True,
    responses=documented(404, 408, 413, 415),
    openapi_extra=FOLDER,
)
async def place_model(
    request: Request, services: Shared, model: Annotated[str, Path(description="`hf:` and the checkpoint's name")]
) -> ModelDetails:
    """Say in which folder of this machine a Hugging Face checkpoint lies. Only where nobody else can reach the server:
    elsewhere the operator names folders (`huggingface_dir`)."""
    if not is_huggingface(model) or not is_model_name(model):
        raise Problem(
            404, "no-such-model", f"{model[:80]!r} is no Hugging Face checkpoint: give `hf:` and a name.", field="model"
        )
    settings = services.settings
    if not (is_loopback(settings.host) and is_loopback(settings.page_host)):
        raise Problem(
            403,
            "not-local",
            "Others reach this server, so folders of its machine are named by its operator alone: by the setting "
            "huggingface_dir.",
        )
    folder = _folder(await receive_json(request, settings, MOST_FOLDER_BYTES))
    await run_in_threadpool(_note, folder, model, settings.checkpoints_dir)
    return ModelDetails.model_validate(await services.worker.model(model))


def _folder(data: bytes) -> FilePath:
    try:
        named = json.loads(data)["folder"]
    except (ValueError, RecursionError, TypeError, KeyError):
        named = None
    if not isinstance(named, str) or not named.strip() or "\0" in named:
        raise Problem(422, "invalid", 'Send {"folder": "…"}, the folder that holds config.json.', field="folder")
    folder = FilePath(named.strip())
    with suppress(RuntimeError, ValueError):  # of nobody whom this machine knows: then it is no whole path
        folder = folder.expanduser()
    if not folder.is_absolute():
        raise Problem(422, "invalid", "Give the whole path of the folder, from the root on.", field="folder")
    return folder


def _note(folder: FilePath, model: str, parent: FilePath) -> None:
    try:
        if not (folder / CONFIG).is_file():
            raise UserError(f"There is no {CONFIG} in that folder, so it is no Hugging Face checkpoint.")
        layout_of(read_config(folder))
        note_elsewhere(parent, model.removeprefix(PREFIX), folder)
    except UserError as error:
        raise Problem(422, "invalid", str(error), field="folder") from None
    except OSError as error:
        raise Problem(422, "invalid", f"That folder cannot be read: {error.strerror}.", field="folder") from None
