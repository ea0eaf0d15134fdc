"""One HTML page with everything in it: text, figures, plotting library, script and style."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from typing import Any

FIGURE_HEIGHT_PX = 320


@dataclass
class Page:
    """A page that grows section by section. What goes into `add` is HTML; everything else is text."""

    title: str
    _body: list[str] = field(default_factory=list)
    _data: dict[str, Any] = field(default_factory=dict)

    def heading(self, text: str) -> None:
        """A section begins."""
        self.add(f"<h2>{escape(text)}</h2>")

    def add(self, html: str) -> None:
        """Any HTML."""
        self._body.append(html)

    def paragraph(self, text: str) -> None:
        """A paragraph."""
        self.add(f"<p>{escape(text)}</p>")

    def items(self, texts: list[str], kind: str) -> None:
        """A list; ``kind`` is its class in the style sheet."""
        if texts:
            self.add(f'<ul class="{kind}">{"".join(f"<li>{escape(text)}</li>" for text in texts)}</ul>')

    def tiles(self, tiles: list[tuple[str, str]]) -> None:
        """Figures to be seen first: what, how much."""
        cells = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in tiles)
        self.add(f'<div class="tiles">{cells}</div>')

    def preformatted(self, text: str, summary: str | None = None) -> None:
        """Text as it stands; with a ``summary``, folded away behind it."""
        block = f"<pre>{escape(text)}</pre>"
        self.add(f"<details><summary>{escape(summary)}</summary>{block}</details>" if summary else block)

    def table(self, names: list[str], rows: list[list[tuple[str, Any]]]) -> None:
        """A table that can be sorted: each cell is its text and the value that it is sorted by."""
        head = "".join(f'<th scope="col"><button>{escape(name)}</button></th>' for name in names)
        body = ""
        for row in rows:
            cells = (f'<td data-value="{escape(json.dumps(value))}">{escape(text)}</td>' for text, value in row)
            body += f"<tr>{''.join(cells)}</tr>"
        self.add(f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>')

    def figure(self, name: str, figure: dict[str, Any], height_px: int = FIGURE_HEIGHT_PX) -> None:
        """A figure of the plotting library: its ``data`` and ``layout``."""
        self._data.setdefault("figures", {})[name] = figure
        self.add(f'<div class="figure" id="{escape(name)}" style="height:{height_px}px"></div>')

    def block_map(self, block_map: dict[str, Any]) -> None:
        """The pool as a film."""
        self._data["block_map"] = block_map
        self.add(_part("block_map.html"))

    def html(self) -> str:
        """The page."""
        from plotly.offline import get_plotlyjs

        data = json.dumps(self._data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
        title, body = escape(self.title), "\n".join(self._body)
        return (
            f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
            '<meta name="viewport" content="width=device-width">\n<link rel="icon" href="data:,">\n'
            f"<style>\n{_part('report.css')}</style>\n</head>\n<body>\n<h1>{title}</h1>\n{body}\n"
            f'<script type="application/json" id="data">{data}</script>\n'
            f"<script>{get_plotlyjs()}</script>\n<script>\n{_part('report.js')}</script>\n</body>\n</html>\n"
        )


def _part(name: str) -> str:
    return (files("kvtwin.experiments.report_page") / name).read_text(encoding="utf-8")
