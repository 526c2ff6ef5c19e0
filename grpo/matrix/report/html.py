"""The matrix as one HTML file that needs nothing else: no script, no font, no request."""

from collections.abc import Sequence
from importlib import resources

from grpo.matrix.report.content import WORDS, MatrixContent
from grpo.telemetry.figures import Figure
from grpo.telemetry.theme import DARK, LIGHT, themed


def render_html(content: MatrixContent, figures: Sequence[Figure]) -> str:
    """The whole page. Texts are escaped by the template; only our own SVG and style go in as they are."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(_read("grpo.matrix.report", "matrix.html"))
    style = _read("grpo.telemetry", "report.css") + _read("grpo.matrix.report", "matrix.css")
    # matplotlib escapes the texts that it draws, and the style is this package's own.
    pictures = [(figure, Markup(themed(figure.svg, figure.name))) for figure in figures]  # noqa: S704
    inline = Markup(style)  # noqa: S704
    return template.render(content=content, pictures=pictures, style=inline, words=WORDS, light=LIGHT, dark=DARK)


def _read(package: str, name: str) -> str:
    return (resources.files(package) / "templates" / name).read_text(encoding="utf-8")
