"""The report as one HTML file that needs nothing else: no script, no font, no request."""

from collections.abc import Sequence
from importlib import resources

from grpo.telemetry.content import Content
from grpo.telemetry.figures import Figure
from grpo.telemetry.theme import DARK, LIGHT, themed


def render_html(content: Content, figures: Sequence[Figure], config_text: str) -> str:
    """The whole page. Texts of the run are escaped by the template; only our own SVG goes in as it is."""
    import jinja2
    from markupsafe import Markup

    folder = resources.files("grpo.telemetry") / "templates"
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string((folder / "report.html").read_text(encoding="utf-8"))
    # matplotlib escapes the texts that it draws, and a picture's texts are this package's own.
    pictures = [(figure, Markup(themed(figure.svg, figure.name))) for figure in figures]  # noqa: S704
    style = Markup((folder / "report.css").read_text(encoding="utf-8"))  # noqa: S704
    return template.render(
        content=content, pictures=pictures, config_text=config_text, style=style, light=LIGHT, dark=DARK
    )
