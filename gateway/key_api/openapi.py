"""The OpenAPI document of the key API."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

Json = dict[str, Any]

LIMITS: Json = {
    "type": "object",
    "additionalProperties": False,
    "description": "Limits of the key alone, each at most its tenant's (docs/limits.md).",
    "properties": {
        **{
            key: {"type": "number", "minimum": 1}
            for key in ("rpm", "tpm", "input_tpm", "output_tpm", "uncached_tpm", "max_parallel_requests")
        },
        "max_budget": {"type": "number", "exclusiveMinimum": 0},
        "budget_duration": {"type": "string", "pattern": "^[1-9][0-9]{0,5}[smhdw]$"},
    },
}

KEY: Json = {
    "type": "object",
    "required": ["tenant", "id", "user", "group", "expires_at", "limits", "fault", "etag"],
    "additionalProperties": False,
    "properties": {
        "tenant": {"type": "string"},
        "id": {"type": "string"},
        "user": {"type": ["string", "null"]},
        "group": {"type": ["string", "null"]},
        "expires_at": {"type": ["string", "null"], "format": "date-time"},
        "limits": {"$ref": "#/components/schemas/Limits"},
        "fault": {"type": ["string", "null"], "description": "What is wrong with the key's file."},
        "etag": {"type": "string", "description": "Version, for `If-Match`."},
    },
}


def openapi_document() -> Json:
    """Return the document, OpenAPI 3.1."""
    tenant: Json = {"name": "tenant", "in": "path", "required": True, "schema": {"type": "string"}}
    key_id: Json = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    if_match: Json = {"name": "If-Match", "in": "header", "required": True, "schema": {"type": "string"}}
    pages: list[Json] = [
        {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": 1000}},
        {"name": "after", "in": "query", "schema": {"type": "string"}, "description": "`next` of the page before."},
    ]
    listed = _operation("List keys", "200", "KeyList", pages, errors=("400", "401", "404"))
    return {
        "openapi": "3.1.0",
        "info": {"title": "Hearth key API", "version": version("hearth-gateway")},
        "paths": {
            "/openapi.json": {"get": _operation("This document", "200", None, [], errors=("401",))},
            "/v1/keys": {"get": listed},
            "/v1/tenants/{tenant}/keys": {
                "parameters": [tenant],
                "get": listed,
                "post": _operation(
                    "Create a key", "201", "CreatedKey", [], body="NewKey", errors=("401", "403", "404", "409", "422")
                ),
            },
            "/v1/tenants/{tenant}/keys/{id}": {
                "parameters": [tenant, key_id],
                "get": _operation("Read a key", "200", "Key", [], errors=("401", "404")),
                "patch": _operation(
                    "Replace the limits of a key",
                    "200",
                    "Key",
                    [if_match],
                    body="Change",
                    errors=("401", "403", "404", "412", "422", "428"),
                ),
                "delete": _operation(
                    "Revoke a key", "204", None, [if_match], errors=("401", "403", "404", "412", "428")
                )
                | {"description": "202 with Redis down: revoked on this host, and elsewhere once Redis is back."},
            },
            "/v1/tenants/{tenant}/keys/{id}/rotate": {
                "parameters": [tenant, key_id],
                "post": _operation(
                    "Replace a key",
                    "201",
                    "CreatedKey",
                    [if_match],
                    body="Rotation",
                    errors=("401", "403", "404", "409", "412", "422", "428"),
                ),
            },
        },
        "components": {"schemas": _schemas(), "securitySchemes": _security()},
        "security": [{"token": []}, {"certificate": []}],
    }


def _schemas() -> Json:
    secret = {"key": {"type": "string", "description": "The key itself: shown here only."}}
    seconds: Json = {"type": "integer", "minimum": 1}
    word: Json = {"type": ["string", "null"], "minLength": 1, "maxLength": 256}
    return {
        "Key": KEY,
        "CreatedKey": KEY | {"required": [*KEY["required"], "key"], "properties": KEY["properties"] | secret},
        "KeyList": {
            "type": "object",
            "required": ["keys", "next"],
            "properties": {
                "keys": {"type": "array", "items": {"$ref": "#/components/schemas/Key"}},
                "next": {"type": ["string", "null"]},
            },
        },
        "NewKey": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "id": word,
                "user": word,
                "group": word,
                "expires_in_s": seconds,
                "limits": {"$ref": "#/components/schemas/Limits"},
            },
        },
        "Change": {
            "type": "object",
            "required": ["limits"],
            "additionalProperties": False,
            "properties": {"limits": {"$ref": "#/components/schemas/Limits"}},
        },
        "Limits": LIMITS,
        "Rotation": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"grace_period_s": {"type": "integer", "minimum": 0, "default": 0}},
        },
        "Error": {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}},
    }


def _security() -> Json:
    return {"token": {"type": "http", "scheme": "bearer"}, "certificate": {"type": "mutualTLS"}}


def _operation(
    summary: str, status: str, schema: str | None, parameters: list[Json], *, errors: tuple[str, ...], body: str = ""
) -> Json:
    success: Json = {"description": summary}
    if schema is not None:
        success["content"] = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    found: Json = {
        "summary": summary,
        "parameters": parameters,
        "responses": {status: success} | {code: {"description": "Error", "content": error} for code in errors},
    }
    if body:
        found["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{body}"}}},
        }
    return found
