"""The colours of a report by role, for light and dark screens."""

import re

# Roles and the colours of the light theme: Okabe and Ito's palette, darkened where it would be pale on white, which
# readers with any colour vision can tell apart. They stand in the SVG as they are and are replaced by name on a page.
LIGHT = {
    "ink": "#1b2530",
    "muted": "#5d6b79",
    "grid": "#e3e8ed",
    "surface": "#fefefe",
    "series-1": "#0067a5",
    "series-2": "#c85200",
    "series-3": "#007a5a",
    "series-4": "#8a5fa8",
    "phase-data": "#999fa6",
    "phase-refit": "#cc79a7",
    "phase-generation": "#0072b2",
    "phase-rewards": "#f0e442",
    "phase-advantages": "#6f4e37",
    "phase-logprobs": "#56b4e9",
    "phase-policy_training": "#e69f00",
    "phase-validation": "#009e73",
    "phase-checkpoint": "#7b61a8",
    "phase-other": "#c3cad1",
}

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


def themed(svg: str, prefix: str) -> str:
    """The SVG for a page: colours as CSS variables `var(--role)`, ids prefixed so that pictures do not share any."""
    for role, color in LIGHT.items():
        svg = svg.replace(color, f"var(--{role})")
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r'(xlink:href|href)="#', rf'\1="#{prefix}-', svg)
    return svg.replace("url(#", f"url(#{prefix}-")
