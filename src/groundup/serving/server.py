"""The app: one model's routes, the pages, and what stands before them, put together."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from groundup.serving.api_errors import ApiError, answers, excerpt, register_error_handlers
from groundup.serving.bodies import JsonRoute
from groundup.serving.completions import Completions
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

if TYPE_CHECKING:
    from groundup.generation import LanguageModel
    from groundup.serving.settings import ServerSettings

_REFUSALS = answers(400, 401, 403, 404, 413)


def create_app(language_model: LanguageModel, settings: ServerSettings) -> FastAPI:
    """An app that serves the model; `app.state.scheduler` has its engine."""
    from groundup import __version__
    from groundup.serving.pages import router_for_pages

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
    app.include_router(router_for_pages(language_model, settings.runs_folder))
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
    )

    @app.get("/v1/models")
    async def list_models() -> ModelList:
        """The one model there is."""
        return ModelList(data=[card])

    @app.get("/v1/models/{name}")
    async def get_model(name: str) -> ModelCard:
        """What is known of a model."""
        if name != card.id:
            message = f"there is no model {excerpt(name)} here: {card.id} is served"
            raise ApiError(404, message, param="model", code="model_not_found")
        return card

    stream: dict[str, Any] = {"content": {"text/event-stream": {}}}

    @app.post(
        "/v1/completions",
        response_model=Completion,
        responses={200: stream, **answers(429, 500, 503)},
    )
    async def complete(request: Request, body: CompletionRequest) -> Response:
        """Go on with a text, as OpenAI's completions do."""
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
        """Figures for Prometheus."""
        page = metrics.page(
            num_waiting=scheduler.num_waiting,
            num_running=scheduler.num_running,
            max_rows=settings.max_rows,
        )
        return Response(page, media_type=CONTENT_TYPE)


def _describe_own_errors(app: FastAPI) -> None:
    """FastAPI describes a 422 for whatever is not valid; here that is a 400."""
    schema = app.openapi()
    for path in schema["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        schema["components"]["schemas"].pop(name, None)
