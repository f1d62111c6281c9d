"""The web page: a client of the public API and its event stream like any other; `routes` are what an app adds."""

from __future__ import annotations

from starlette.routing import BaseRoute

from .asset_views import ROUTES as ASSETS
from .files import ROUTES as FILES
from .find_views import ROUTES as FINDING
from .run_views import ROUTES as RUNS
from .task_views import ROUTES as TASKS

__all__ = ["routes"]


def routes() -> list[BaseRoute]:
    """Return the page's routes; they go before those of `browser`, whose `/` is for strangers and programs."""
    return [*RUNS, *TASKS, *ASSETS, *FINDING, *FILES]
