"""HTTP server of `mirror.tools.demo`: the page and its API, with limits on the host, size and rate of requests.

Only the page of this server may send requests. Other host names are refused (DNS rebinding: a foreign name that
resolves to 127.0.0.1), and so are requests of other pages (by `Origin` and `Sec-Fetch-Site`) and bodies without a JSON
content type, before they count as requests. Input is neither logged nor stored.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Annotated

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, StringConstraints
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from mirror.common.errors import InputError
from mirror.tools.demo_models import ComparedModel
from mirror.tools.demo_page import PAGE, corpus_map, shorten


HOSTS = ["127.0.0.1", "localhost"]  # host names in requests from this machine or through a tunnel
MAX_BODY_BYTES = 64 << 10
MAX_CHARACTERS = 2000  # of an input text; same as maxlength in index.html
REQUESTS_PER_SECOND, MAX_BURST = 5, 20
REQUEST_SECONDS = 10  # for a request to arrive completely
HEADERS = {
    # No external resources, no inline code, and no HTML from strings (trusted types).
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",  # another run may use the same address later
}

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_CHARACTERS)]


class Pair(BaseModel):
    first: Text
    second: Text


class Query(BaseModel):
    query: Text


class PatientProtocol(H11Protocol):
    """uvicorn's protocol, which waits for a request without end; this one waits `REQUEST_SECONDS`, then hangs up.

    Otherwise connections that never complete a request use up the descriptors of the process.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.loop.call_later(REQUEST_SECONDS, self.hang_up_if_waiting, self.cycle)

    def hang_up_if_waiting(self, earlier: RequestResponseCycle | None) -> None:
        """Close the connection if no request arrived since `earlier` was the last one, otherwise check again later."""
        is_answering = self.cycle and not (self.cycle.more_body or self.cycle.response_complete)
        if self.cycle is earlier and not is_answering:
            self.transport.abort()
        elif not self.transport.is_closing():
            self.loop.call_later(REQUEST_SECONDS, self.hang_up_if_waiting, self.cycle)


class TokenBucket:
    """Rate limiter: up to `burst` requests at once, `rate` requests per second on average.

    All requests come from one machine, so limits per client, as libraries offer them, are not needed.
    """

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic):
        self.rate, self.burst, self.clock = rate, burst, clock
        self.tokens, self.filled = burst, clock()

    def wait(self) -> float:
        """0 if a request may pass now, otherwise the seconds until the next one may."""
        now = self.clock()
        self.tokens, self.filled = min(self.burst, self.tokens + (now - self.filled) * self.rate), now
        if self.tokens < 1:
            return (1 - self.tokens) / self.rate
        self.tokens -= 1
        return 0.0


def create_app(before: ComparedModel, after: ComparedModel, k: int) -> FastAPI:
    """The page and its API, which answers with the results of both models; `k` matches per query."""
    app = FastAPI(openapi_url=None)  # no documentation pages: they load external scripts
    models = {"before": before, "after": after}
    map_of_corpus = corpus_map(models)

    # The handlers do not await, so requests run one after the other: tokenizers are not thread-safe.
    @app.get("/api/corpus")
    async def corpus():
        return map_of_corpus

    @app.post("/api/cosine")
    async def cosine(pair: Pair):
        return {name: model.cosine(pair.first, pair.second) for name, model in models.items()}

    @app.post("/api/search")
    async def search(body: Query):
        answers = {name: model.search(body.query, k) for name, model in models.items()}
        for answer in answers.values():
            for match in answer["matches"]:
                match["text"] = shorten(match["text"])
        return answers

    app.mount("/", StaticFiles(directory=PAGE, html=True))
    protect(app)
    return app


def protect(app: FastAPI) -> None:
    """Add limits on host, size and rate, security headers on every response, and one-line JSON errors."""
    bucket = TokenBucket(REQUESTS_PER_SECOND, MAX_BURST)
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=MAX_BODY_BYTES)

    @app.middleware("http")
    async def refuse_or_answer(request: Request, call_next):
        response = refusal(request, bucket) or await call_next(request)
        response.headers.update(HEADERS)
        return response

    app.add_middleware(TrustedHostMiddleware, allowed_hosts=HOSTS)  # the middleware added last runs first

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError):
        first = error.errors()[0]
        return error_response(422, f"{first['msg']} ({'.'.join(map(str, first['loc']))})")

    @app.exception_handler(InputError)
    async def unusable(request: Request, error: InputError):
        return error_response(400, str(error))


def refusal(request: Request, bucket: TokenBucket) -> JSONResponse | None:
    """The response to a request that is not answered; only requests of this server's own page count for the rate."""
    if request.url.path.startswith("/api/") and is_from_another_page(request):
        return error_response(403, "requests of other pages are refused")
    if request.method != "POST":
        return None
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return error_response(415, "the body must be JSON, with the content type application/json")
    if wait := bucket.wait():
        response = error_response(429, "too many requests; wait a moment")
        response.headers["Retry-After"] = str(math.ceil(wait))
        return response
    return None


def is_from_another_page(request: Request) -> bool:
    """Whether a browser says so; programs other than browsers send neither header."""
    headers = request.headers
    own_origin = f"{request.url.scheme}://{headers.get('host')}"
    return headers.get("sec-fetch-site", "none") not in ("same-origin", "none") or (
        headers.get("origin", own_origin) != own_origin
    )


def error_response(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status)
