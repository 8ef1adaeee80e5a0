"""The app: one model's routes, the pages, and what stands before them, put together.

The pages are the playground with the tokenizer view at `/`, the chat at `/chat` and the runs at
`/runs`. Their files are those of static/ and plotly's own script."""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles

from groundup.errors import GroundupError
from groundup.serving.api_errors import ApiError, answers, excerpt, register_error_handlers
from groundup.serving.bodies import JsonRoute
from groundup.serving.chat_protocol import ChatCompletion, ChatRequest
from groundup.serving.completions import Completions
from groundup.serving.dashboard import router_for_runs
from groundup.serving.guards import Guards
from groundup.serving.metrics_page import CONTENT_TYPE, Metrics
from groundup.serving.protocol import (
    Completion,
    CompletionRequest,
    Health,
    ModelCard,
    ModelList,
)
from groundup.serving.scheduler import Scheduler
from groundup.serving.tokenizer_view import router_for_tokenizer

if TYPE_CHECKING:
    from groundup.generation import LanguageModel
    from groundup.serving.settings import ServerSettings

STATIC_FOLDER = Path(__file__).parent / "static"

_REFUSALS = answers(400, 401, 403, 404, 413)


def create_app(language_model: LanguageModel, settings: ServerSettings) -> FastAPI:
    """An app that serves the model; `app.state.scheduler` has its engine.

    language_model: what is served.
    settings: limits, tokens and names.
    """
    from groundup import __version__

    metrics = Metrics()
    scheduler = Scheduler(lambda: language_model.make_engine(settings.max_rows), settings, metrics)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        scheduler.start()
        yield
        scheduler.stop()

    # The interactive pages of FastAPI load their scripts from elsewhere.
    app = FastAPI(
        title="groundup",
        summary=f"The language model {settings.model_name}, served.",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses=_REFUSALS,
    )
    app.state.scheduler = scheduler
    app.router.route_class = JsonRoute
    register_error_handlers(app)
    app.add_middleware(Guards, settings=settings, metrics=metrics)
    _add_model_routes(app, language_model, settings, scheduler)
    _add_monitor_routes(app, settings, scheduler, metrics)
    _add_pages(app)
    app.include_router(router_for_tokenizer(language_model.tokenizer))
    app.include_router(router_for_runs(settings.runs_folder, settings.model_name))
    _describe_own_errors(app)
    return app


def _add_model_routes(
    app: FastAPI, language_model: LanguageModel, settings: ServerSettings, scheduler: Scheduler
) -> None:
    completions = Completions(language_model, settings, scheduler)
    config = language_model.model.config
    card = ModelCard(
        id=settings.model_name,
        created=int(time.time()),
        context_length=config.context_length,
        vocab_size=language_model.tokenizer.vocab_size,
        step=language_model.step,
        max_new_tokens=settings.max_new_tokens,
        has_chat_template=language_model.tokenizer.chat_template is not None,
        prompts=list(settings.prompts),
    )

    @app.get("/v1/models")
    async def list_models() -> ModelList:
        """The one model there is."""
        return ModelList(data=[card])

    @app.get("/v1/models/{name}")
    async def get_model(name: str) -> ModelCard:
        """What is known of a model."""
        if name != card.id:
            message = f"model {excerpt(name)} does not exist here: {card.id} is served"
            raise ApiError(404, message, param="model", code="model_not_found")
        return card

    stream: dict[str, Any] = {"content": {"text/event-stream": {}}}

    @app.post(
        "/v1/completions",
        response_model=Completion,
        responses={200: stream, **answers(429, 500, 503)},
    )
    async def complete(request: Request, body: CompletionRequest) -> Response:
        """Continue a text, as OpenAI's completions do."""
        return await completions.answer(request, body)

    @app.post(
        "/v1/chat/completions",
        response_model=ChatCompletion,
        responses={200: stream, **answers(429, 500, 503)},
    )
    async def chat(request: Request, body: ChatRequest) -> Response:
        """Answer a conversation, as OpenAI's chat completions do."""
        return await completions.answer(request, body)


def _add_monitor_routes(
    app: FastAPI, settings: ServerSettings, scheduler: Scheduler, metrics: Metrics
) -> None:
    @app.get("/health", response_model=Health, responses={503: {"model": Health}})
    async def health() -> Response:
        """Whether requests are taken."""
        state = Health.model_validate(
            {
                "status": scheduler.status,
                "model": settings.model_name,
                "running": scheduler.num_running,
                "waiting": scheduler.num_waiting,
            }
        )
        return JSONResponse(state.model_dump(), 200 if state.status == "ok" else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def show_metrics() -> Response:
        """Metrics for Prometheus."""
        page = metrics.page(
            num_waiting=scheduler.num_waiting,
            num_running=scheduler.num_running,
            max_rows=settings.max_rows,
        )
        return Response(page, media_type=CONTENT_TYPE)


def _add_pages(app: FastAPI) -> None:
    static = _StaticFiles(directory=STATIC_FOLDER)
    plotly = _StaticFiles(directory=plotly_script_path().parent)

    @app.get("/", include_in_schema=False)
    async def playground(request: Request) -> Response:
        return await static.get_response("playground.html", request.scope)

    @app.get("/chat", include_in_schema=False)
    async def chat(request: Request) -> Response:
        return await static.get_response("chat.html", request.scope)

    @app.get("/runs", include_in_schema=False)
    async def runs(request: Request) -> Response:
        return await static.get_response("runs.html", request.scope)

    @app.get("/static/plotly.min.js", include_in_schema=False)
    async def plotly_script(request: Request) -> Response:
        return await plotly.get_response("plotly.min.js", request.scope)

    app.mount("/static", static)


class _StaticFiles(StaticFiles):
    """A newer groundup brings newer pages: the browser asks each time and is told "unchanged"."""

    def file_response(self, *given: Any, **options: Any) -> Response:
        response = super().file_response(*given, **options)
        response.headers["Cache-Control"] = "no-cache"
        return response


def plotly_script_path() -> Path:
    """plotly.js as the installed plotly package brings it."""
    spec = importlib.util.find_spec("plotly")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        script = Path(folder) / "package_data" / "plotly.min.js"
        if script.is_file():
            return script
    raise GroundupError(
        "the page of the runs needs plotly.min.js, which the package plotly brings: "
        "run pip install 'plotly>=6' and try again"
    )


def _describe_own_errors(app: FastAPI) -> None:
    """FastAPI describes a 422 for whatever is not valid; here that is a 400."""
    schema = app.openapi()
    for path in schema["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        schema["components"]["schemas"].pop(name, None)
