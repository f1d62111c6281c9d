"""The web page: a client of the public API and its event stream like any other; `routes` are what an app adds."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

__all__ = ["routes"]


def routes() -> list[BaseRoute]:
    """Return the page's routes; they go before those of `browser`, whose `/` is for strangers and programs."""
    from .asset_views import ROUTES as ASSETS
    from .files import ROUTES as FILES
    from .find_views import ROUTES as FINDING
    from .run_views import ROUTES as RUNS  # these use `browser`, which uses this package's `rendering`
    from .task_views import ROUTES as TASKS

    return [*RUNS, *TASKS, *ASSETS, *FINDING, *FILES]
