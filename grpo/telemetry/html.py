"""The report as one HTML file that needs nothing else: no script, no font, no request."""

from collections.abc import Sequence
from importlib import resources

from grpo.telemetry.content import Content
from grpo.telemetry.figures import LIGHT, Figure, themed

# The same roles for a dark screen.
DARK = {
    "ink": "#e8edf2",
    "muted": "#9aa8b5",
    "grid": "#2a343e",
    "surface": "#171e25",
    "series-1": "#5ab0ee",
    "series-2": "#f5955c",
    "series-3": "#45c79c",
    "series-4": "#c39be0",
    "phase-data": "#8a929a",
    "phase-refit": "#d98bb4",
    "phase-generation": "#3d97d3",
    "phase-rewards": "#efe45e",
    "phase-advantages": "#a8815f",
    "phase-logprobs": "#7cc8f0",
    "phase-policy_training": "#e8ab2e",
    "phase-validation": "#2fb58d",
    "phase-checkpoint": "#a08ad0",
    "phase-other": "#57626d",
}


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
