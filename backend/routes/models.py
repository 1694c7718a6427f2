"""Routes of the models that can be traced."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from tokenpaths.backend.http.redact_paths import redact
from tokenpaths.backend.problems import Problem, documented
from tokenpaths.backend.schemas.models import ModelDetails, ModelList
from tokenpaths.backend.services import Shared
from tokenpaths.engine.adapters.huggingface.config import is_model_name

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
