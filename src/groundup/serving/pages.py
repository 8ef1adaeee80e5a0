"""The pages a browser opens: the playground with the tokenizer view at `/`, the runs at `/runs`.

Serves the files of static/ and plotly's own script; what the pages ask for is answered elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import FileResponse, Response

from groundup.serving.dashboard import plotly_script_path, router_for_runs
from groundup.serving.tokenizer_view import router_for_tokenizer

if TYPE_CHECKING:
    from groundup.generation import LanguageModel

STATIC_FOLDER = Path(__file__).parent / "static"

_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def router_for_pages(language_model: LanguageModel, runs_folder: Path) -> APIRouter:
    """The pages, their files, and the routes that only the pages use."""
    router = APIRouter()
    files = find_static_files()

    @router.get("/", include_in_schema=False)
    def playground(request: Request) -> Response:
        return _serve(request, files["playground.html"])

    @router.get("/runs", include_in_schema=False)
    def runs(request: Request) -> Response:
        return _serve(request, files["runs.html"])

    @router.get("/static/{name}", include_in_schema=False)
    def static_file(request: Request, name: str) -> Response:
        # A name is looked up, never joined to a path: there is nothing to climb out of.
        if name not in files:
            raise HTTPException(404)
        return _serve(request, files[name])

    router.include_router(router_for_tokenizer(language_model.tokenizer))
    router.include_router(router_for_runs(runs_folder))
    return router


def find_static_files() -> dict[str, Path]:
    """Every file a page may ask for, by its name under /static/."""
    files = {path.name: path for path in STATIC_FOLDER.iterdir() if path.suffix in _MEDIA_TYPES}
    files["plotly.min.js"] = plotly_script_path()
    return files


def _serve(request: Request, path: Path) -> Response:
    # A newer groundup brings newer pages: the browser asks each time and is told "unchanged".
    headers = {"Cache-Control": "no-cache"}
    response = FileResponse(
        path, media_type=_MEDIA_TYPES[path.suffix], headers=headers, stat_result=path.stat()
    )
    if request.headers.get("If-None-Match") == response.headers["ETag"]:
        return Response(status_code=304, headers={**headers, "ETag": response.headers["ETag"]})
    return response
