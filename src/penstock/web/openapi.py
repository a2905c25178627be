"""The OpenAPI document of the REST interface, made from the table of routes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.runtime.version import penstock_version
from penstock.web.routes import Route
from penstock.web.sessions import COOKIE

_FAILURES = {
    "400": "The request is not understood, or a value is not allowed.",
    "401": "No credentials, or wrong ones.",
    "403": "The account lacks a permission.",
    "404": "The thing does not exist.",
    "503": "The cluster cannot be reached, or the server is busy.",
    "504": "No answer in time; whether a change was made is unknown.",
}


def openapi_document(routes: Sequence[Route]) -> dict[str, Any]:
    """Return the document, version 3.1."""
    types = {kind for route in routes for kind in (route.body, *route.reply) if kind is not None}
    ordered = sorted(types, key=str)
    schemas, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(ordered, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": penstock_version()},
        "paths": paths,
        "components": {
            "schemas": {
                **components,
                "Refusal": {
                    "type": "object",
                    "required": ["error", "message"],
                    "properties": {"error": {"type": "string"}, "message": {"type": "string"}},
                },
            },
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "session": {"type": "http", "scheme": "bearer"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": COOKIE},
            },
        },
        "security": [{}, {"basic": []}, {"session": []}, {"cookie": []}],
    }


def _operation(route: Route, schema_of: dict[object, Any]) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    parameters += [
        {
            "name": query.name,
            "in": "query",
            "description": query.summary,
            "schema": {"type": "integer" if query.is_number else "string"},
        }
        for query in route.queries
    ]
    success: dict[str, Any] = {"description": "Done."}
    if route.is_stream:
        success["content"] = {"text/event-stream": {"schema": {"type": "string"}}}
    elif route.status != 204:
        kinds = [schema_of[kind] for kind in route.reply]
        success["content"] = {"application/json": {"schema": kinds[0] if len(kinds) == 1 else {"anyOf": kinds}}}
    refusal = {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}
    found: dict[str, Any] = {
        "summary": route.summary,
        "operationId": route.answer.__name__,
        "description": f"Needs {route.needs}." if route.needs else route.summary,
        "tags": ["pravega" if route.is_pravega else "penstock"],
        "parameters": parameters,
        "responses": {
            str(route.status): success,
            **({} if route.later is None else {str(route.later): {**success, "description": "The change continues."}}),
            **{status: {"description": text, "content": refusal} for status, text in _FAILURES.items()},
            "default": {"description": "Another failure.", "content": refusal},
        },
    }
    if route.body is not None:
        media = "application/x-ndjson" if route.body_is_lines else "application/json"
        found["requestBody"] = {"required": True, "content": {media: {"schema": schema_of[route.body]}}}
    return found
