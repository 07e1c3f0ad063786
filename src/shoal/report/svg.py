"""What all SVG files of Shoal share: the frame, the description, and colors for light and dark."""

from __future__ import annotations

from html import escape

from shoal.report.palette import STRATEGY_COLORS, THEME


def drawing(width: int, height: int, description: str, body: str) -> str:
    """Return an SVG file of `body`; `description` says in words what it shows."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-labelledby="title">\n'
        f'<title id="title">{escape(description)}</title>\n<style>{_css()}</style>\n'
        f'<rect class="back" width="{width}" height="{height}" rx="10"/>\n{body}</svg>\n'
    )


def _css() -> str:
    shared = (
        "text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif}"
        "text.title{font-size:16px;font-weight:600}text.tick,text.small{font-size:11.5px}"
        ".end{text-anchor:end}.middle{text-anchor:middle}"
        ".line{fill:none;stroke-width:2;stroke-linejoin:round}.target{stroke-dasharray:5 4}"
        ".line.square{stroke-dasharray:9 3}.line.triangle{stroke-dasharray:3 3}"
        ".line.diamond{stroke-dasharray:12 3 3 3}.line.cross{stroke-dasharray:1.5 4}"
        ".line.large{stroke-width:3}text.strong{font-weight:600}.whisker{fill:none;stroke-width:1.4}"
        ".line.other{stroke-width:1.2;opacity:.45}text.name{font-size:13px;font-weight:600}"
    )
    return f"{shared}{_colors(0)}@media(prefers-color-scheme:dark){{{_colors(1)}}}"


def _colors(theme: int) -> str:
    tint = {name: pair[theme] for name, pair in THEME.items()}
    strategies = "".join(
        f".line.s{slot}{{stroke:{pair[theme]}}}.dot.s{slot}{{fill:{pair[theme]}}}"
        for slot, pair in enumerate(STRATEGY_COLORS)
    )
    return (
        f".back{{fill:{tint['surface']}}}text{{fill:{tint['text']}}}"
        f".tick,.small,.after{{fill:{tint['muted']}}}.grid{{stroke:{tint['grid']}}}"
        f".whisker{{stroke:{tint['text']}}}.line.known{{stroke:{tint['text']}}}.dot.known{{fill:{tint['text']}}}"
        f".axis,.target,.lead,.line.other{{stroke:{tint['muted']}}}{strategies}"
    )
