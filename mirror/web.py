"""The page of `mirror.demo` and its three questions over HTTP, with limits on who asks, how much and how often.

Only a page that this server sent may ask: another host's name is refused (a stranger's page whose name resolves to
127.0.0.1), and so is a body that is not declared JSON (a stranger's page that posts across origins). Nothing that is
typed is logged or kept.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, StringConstraints
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from mirror.comparison import Side
from mirror.errors import InputError


PAGE = Path(__file__).resolve().parent / "page"
HOSTS = ["127.0.0.1", "localhost"]  # what a browser on this machine, or behind a tunnel to it, calls us
MAX_BODY_BYTES = 64 << 10
MAX_CHARACTERS = 2000  # of a text that is typed; index.html says the same
SHOWN_CHARACTERS = 300  # of a text of the corpus
MAP_TEXTS = 2000
QUESTIONS_A_SECOND, QUESTIONS_AT_ONCE = 5, 20
HEADERS = {
    # Nothing from elsewhere, nothing inline; and a script that hands a string to an HTML parser is stopped.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",  # another run may answer at the same address
}

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_CHARACTERS)]


class Pair(BaseModel):
    first: Text
    second: Text


class Query(BaseModel):
    query: Text


class TokenBucket:
    """`burst` requests at once, `rate` a second in the long run.

    All requests come from this machine, so a library's limits by client would be this one bucket with more around it.
    """

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic):
        self.rate, self.burst, self.clock = rate, burst, clock
        self.tokens, self.filled = burst, clock()

    def wait(self) -> float:
        """0 lets a request pass; otherwise the seconds until one may."""
        now = self.clock()
        self.tokens, self.filled = min(self.burst, self.tokens + (now - self.filled) * self.rate), now
        if self.tokens < 1:
            return (1 - self.tokens) / self.rate
        self.tokens -= 1
        return 0.0


def create_app(before: Side, after: Side, k: int) -> FastAPI:
    """The page, and the answers of both models to what is typed there; `k` matches of a query."""
    app = FastAPI(openapi_url=None)  # its own pages of documentation load scripts from elsewhere
    sides = {"before": before, "after": after}
    map_of_corpus = corpus_map(sides)

    # These do not await, so requests take turns: a tokenizer serves one thread at a time.
    @app.get("/api/corpus")
    async def corpus():
        return map_of_corpus

    @app.post("/api/cosine")
    async def cosine(pair: Pair):
        return {name: side.cosine(pair.first, pair.second) for name, side in sides.items()}

    @app.post("/api/search")
    async def search(asked: Query):
        answers = {name: side.search(asked.query, k) for name, side in sides.items()}
        for answer in answers.values():
            for match in answer["matches"]:
                match["text"] = shown(match["text"])
        return answers

    app.mount("/", StaticFiles(directory=PAGE, html=True))
    protect(app)
    return app


def corpus_map(sides: dict[str, Side]) -> dict:
    """At most `MAP_TEXTS` of the texts, the same ones each time, and what each model makes of them."""
    texts = sides["after"].texts
    rows = sorted(random.Random(0).sample(range(len(texts)), min(MAP_TEXTS, len(texts))))
    described = {name: side.describe(rows) for name, side in sides.items()}
    pooling = sides["after"].encoder.pooling
    return {"num_texts": len(texts), "pooling": pooling, "texts": [shown(texts[row]) for row in rows], **described}


def shown(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


def protect(app: FastAPI) -> None:
    """Limits on host, size and rate, the headers of every answer, and errors of one line."""
    bucket = TokenBucket(QUESTIONS_A_SECOND, QUESTIONS_AT_ONCE)
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=MAX_BODY_BYTES)

    @app.middleware("http")
    async def limit_rate(request: Request, call_next):
        wait = bucket.wait() if request.method == "POST" else 0.0
        if wait:
            response = one_line(429, "too many questions at once; wait a moment")
            response.headers["Retry-After"] = str(math.ceil(wait))
        else:
            response = await call_next(request)
        response.headers.update(HEADERS)
        return response

    app.add_middleware(TrustedHostMiddleware, allowed_hosts=HOSTS)  # the last one added is the first one asked

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError):
        first = error.errors()[0]
        return one_line(422, f"{first['msg']} ({'.'.join(map(str, first['loc']))})")

    @app.exception_handler(InputError)
    async def unusable(request: Request, error: InputError):
        return one_line(400, str(error))


def one_line(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status)
