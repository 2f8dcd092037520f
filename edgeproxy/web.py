"""Starlette, as both applications use it: JSON answers, and every error OpenAI-shaped."""

from __future__ import annotations

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from edgeproxy.protocol.openai.errors import ApiError

_JSON = "application/json"


def starlette(routes: list[Route]) -> Starlette:
    app = Starlette(routes=routes, exception_handlers=_HANDLERS)
    app.router.redirect_slashes = False  # a redirect would repeat the client's Host
    return app


def json(value: object) -> Response:
    return Response(orjson.dumps(value), media_type=_JSON)


def error_response(error: ApiError) -> Response:
    response = Response(error.body(), error.status, media_type=_JSON)
    response.raw_headers.extend(error.headers)
    return response


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Starlette's own: 404 and 405."""
    assert isinstance(error, HTTPException)
    messages = {404: "there is nothing at this path", 405: "this path does not take this method"}
    codes = {404: "not_found", 405: "method_not_allowed"}
    message, code = messages.get(error.status_code, error.detail), codes.get(error.status_code)
    headers = tuple((name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items())
    return error_response(ApiError(error.status_code, message, code, headers=headers))


async def _on_fault(request: Request, error: Exception) -> Response:
    return error_response(ApiError(500, "the proxy failed; the operator's log says where", "internal_error"))


_HANDLERS = {ApiError: _on_api_error, HTTPException: _on_http_error, Exception: _on_fault}
