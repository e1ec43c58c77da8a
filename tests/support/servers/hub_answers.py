"""Answers of the Hub that both its reading and its writing half give."""

from __future__ import annotations

import json

from tests.support.servers.http11 import Response


def as_json(content: object) -> Response:
    """Return a JSON answer."""
    return Response(200, {"Content-Type": "application/json; charset=utf-8"}, json.dumps(content).encode())


def error(status: int, message: str, *, code: str = "", headers: dict[str, str] | None = None) -> Response:
    """Return an error as the Hub does: in JSON, and in the headers that `huggingface_hub` reads."""
    named = {"X-Error-Code": code} if code else {}
    heads = {"Content-Type": "application/json; charset=utf-8", "X-Error-Message": message} | named | (headers or {})
    return Response(status, heads, json.dumps({"error": message}).encode())


def missing_repo(token: str | None) -> Response:
    """Return the answer for a repository that is not there, or not to be seen: the Hub tells anonymous clients 401."""
    if token is None:
        return error(401, "Invalid username or password.", code="RepoNotFound")
    return error(404, "Repository not found", code="RepoNotFound")
