"""One HTML page with everything in it: text, figures, plotting library, script and style."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

    from kvtwin.experiments.report_page.run_figures import Figure


_SCRIPTS = ("figures.js", "tables.js", "block_map.js", "report.js")


def page(
    template: str,
    figures: Mapping[str, Figure | None],
    block_map: dict[str, Any] | None = None,
    requests: dict[str, Any] | None = None,
    **content: Any,
) -> str:
    """Fill ``template``, a page of this folder, with its ``content``.

    ``figures`` are by the name under which the template places them; those that are None are not there.
    """
    from plotly.offline import get_plotlyjs

    drawn = {name: figure.to_plotly_json() for name, figure in figures.items() if figure}
    data = {"figures": drawn, "block_map": block_map, "requests": requests}
    own = {
        "style": _text("report.css"),
        "script": "\n".join(map(_text, _SCRIPTS)),
        "plotly": get_plotlyjs() if drawn else "",
    }
    return _templates().get_template(template).render(data=data, **data, **own, **content)


@cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = Environment(
        loader=PackageLoader("kvtwin.experiments.report_page", ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    templates.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return templates


def _text(name: str) -> str:
    return (files("kvtwin.experiments.report_page") / name).read_text(encoding="utf-8")
