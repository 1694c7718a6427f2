"""The API's contract is frozen: a change of it must be meant.

Refresh after a change that you mean: python -m tests.backend.test_openapi_golden
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from tokenpaths.backend.app import create_app
from tokenpaths.backend.settings import load_settings
from tokenpaths.engine.jobs.registry import SHIPPED_KINDS

GOLDEN = Path(__file__).resolve().parent.parent / "goldens" / "openapi.json"


def schema_text() -> str:
    """The schema as the golden file holds it."""
    with tempfile.TemporaryDirectory() as folder:
        schema = create_app(load_settings(data_dir=Path(folder))).openapi()
    return json.dumps(schema, indent=0, sort_keys=True, ensure_ascii=False) + "\n"  # a line each, for diffs


def test_openapi_is_the_golden_one() -> None:
    assert json.loads(schema_text()) == json.loads(GOLDEN.read_text(encoding="utf-8")), (
        "the API's description changed; if you meant it: python -m tests.backend.test_openapi_golden"
    )


def test_every_route_and_field_is_documented() -> None:
    schema: dict[str, Any] = json.loads(schema_text())
    for path, methods in schema["paths"].items():
        for method, route in methods.items():
            assert len(route["description"]) > 15, (method, path)
            assert any(code.startswith("2") for code in route["responses"]), (method, path)
            for parameter in route.get("parameters", []):
                assert parameter.get("description") or parameter["name"] in ("measure", "table", "format"), (
                    path,
                    parameter,
                )
            for code, answer in route["responses"].items():
                if code.startswith(("4", "5")):
                    assert "application/problem+json" in answer["content"], (method, path, code)
    for name, shape in schema["components"]["schemas"].items():
        assert shape.get("description"), name
    assert "HTTPValidationError" not in json.dumps(schema)


def test_all_kinds_of_jobs_are_named_wherever_a_kind_is_told() -> None:
    schema: dict[str, Any] = json.loads(schema_text())
    jobs = schema["paths"]["/api/v1/jobs"]
    body = jobs["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]["kind"]
    asked = next(one for one in jobs["get"]["parameters"] if one["name"] == "kind")
    for told in (body, asked, schema["components"]["schemas"]["Job"]["properties"]["kind"]):
        assert all(f"`{kind}`" in told["description"] for kind in SHIPPED_KINDS), told
    assert "map" in SHIPPED_KINDS


if __name__ == "__main__":
    GOLDEN.write_text(schema_text(), encoding="utf-8")
    print(f"wrote {GOLDEN}")
