"""The ASGI app: API routes, pages and middleware.

The pages are the playground with the tokenizer view at `/`, the chat at `/chat`, a prompt's path
through the model at `/inside` and the runs at `/runs`. Their files are in static/; plotly.js comes
from the plotly package.
"""

import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from groundup.serving.api_errors import ApiError, answer_http_exception
from groundup.serving.guards import Guards
from groundup.serving.models import Models
from groundup.serving.protocol import AnyBody, ChatRequest, CompletionRequest, parse_body
from groundup.serving.runs_api import runs_routes
from groundup.serving.views import (
    InsideRequest,
    RatingRequest,
    TokenizeRequest,
    describe_inside,
    describe_tokenization,
    save_rating,
)

STATIC_FOLDER = Path(__file__).parent / "static"


def create_app(models: Models, on_start: Callable[[], None]) -> Starlette:
    """Create the app; requests without a model name use the first model."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await models.start()
        on_start()
        yield
        models.stop()

    app = Starlette(
        routes=[
            *_model_routes(models),
            *_monitor_routes(models),
            *runs_routes(models.settings.runs_folder, served=models.names[0]),
            *_page_routes(),
        ],
        middleware=[Middleware(Guards, settings=models.settings, metrics=models.metrics)],
        exception_handlers={HTTPException: answer_http_exception},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app


def _model_routes(models: Models) -> list[Route]:
    async def list_models(request: Request) -> Response:
        client = request.scope["client_name"]
        cards = [await models.card(name, client) for name in models.names]
        return JSONResponse({"object": "list", "data": cards})

    async def get_model(request: Request) -> Response:
        name, client = request.path_params["name"], request.scope["client_name"]
        return JSONResponse(await models.card(name, client))

    def complete(kind: type[CompletionRequest | ChatRequest]) -> Any:
        async def answer(request: Request) -> Response:
            body = await _read_body(request, kind)
            async with models.use(body.model) as model:
                return await model.answer(request, body)

        return answer

    def view(kind: type[TokenizeRequest | InsideRequest], describe: Any) -> Any:
        async def answer(request: Request) -> Response:
            body = await _read_body(request, kind)
            async with models.use(body.model) as model:
                work = functools.partial(describe, model.language_model, body)
                content = await models.workers.run("view", request.scope["client_name"], work)
            return Response(content, media_type="application/json")

        return answer

    async def rate(request: Request) -> Response:
        body = await _read_body(request, RatingRequest)
        folder = models.ratings_folder(body.model)
        if folder is None:
            raise ApiError(403, "ratings are not saved: start the server with --save-ratings yes")
        client = request.scope["client_name"]
        await models.workers.run("view", client, functools.partial(save_rating, folder, body))
        return JSONResponse({"rating": body.rating})

    return [
        Route("/v1/models", list_models),
        Route("/v1/models/{name}", get_model),
        Route("/v1/completions", complete(CompletionRequest), methods=["POST"]),
        Route("/v1/chat/completions", complete(ChatRequest), methods=["POST"]),
        Route("/api/tokenize", view(TokenizeRequest, describe_tokenization), methods=["POST"]),
        Route("/api/rating", rate, methods=["POST"]),
        Route("/api/inside", view(InsideRequest, describe_inside), methods=["POST"]),
    ]


async def _read_body(request: Request, kind: type[AnyBody]) -> AnyBody:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise ApiError(400, "the body must be JSON, sent with content-type application/json")
    return parse_body(await request.body(), kind)


def _monitor_routes(models: Models) -> list[Route]:
    async def health(request: Request) -> Response:
        """Whether requests are accepted, and the numbers of running and waiting sequences."""
        schedulers = models.schedulers
        states = {"ok", *(scheduler.status for scheduler in schedulers)}
        status = next(state for state in ("failed", "stopping", "ok") if state in states)
        content = {
            "status": status,
            "models": models.names,
            "running": sum(scheduler.num_running for scheduler in schedulers),
            "waiting": sum(scheduler.num_waiting for scheduler in schedulers),
        }
        return JSONResponse(content, 200 if status == "ok" else 503)

    async def show_metrics(request: Request) -> Response:
        return Response(
            models.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    return [Route("/health", health), Route("/metrics", show_metrics)]


def _page_routes() -> list[Route | Mount]:
    static = StaticFiles(directory=STATIC_FOLDER)
    plotly = StaticFiles(packages=[("plotly", "package_data")])

    def page(path: str, name: str, files: StaticFiles = static) -> Route:
        async def answer(request: Request) -> Response:
            return await files.get_response(name, request.scope)

        return Route(path, answer)

    return [
        page("/", "playground.html"),
        page("/chat", "chat.html"),
        page("/inside", "inside.html"),
        page("/runs", "runs.html"),
        Route("/tokenizer", lambda request: RedirectResponse("/#tokenizer")),
        page("/static/plotly.min.js", "plotly.min.js", plotly),
        Mount("/static", static),
    ]
