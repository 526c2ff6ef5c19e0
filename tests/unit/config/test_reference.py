from pathlib import Path

from grpo.config.reference import markdown
from grpo.config.schema import Config
from grpo.config.shape import at, section_keys, shape_of

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"
REFRESH = "python -c 'from grpo.config.reference import markdown; print(markdown(), end=\"\")' > docs/configuration.md"


def test_the_committed_page_is_fresh():
    assert PAGE.read_text(encoding="utf-8") == markdown(), f"run: {REFRESH}"


def test_every_leaf_is_on_the_page():
    page = markdown()
    keys = [key for key in section_keys(shape_of(Config)) if not at(Config, key.replace("*", "x")).sections]
    assert len(keys) > 120
    assert [key for key in keys if f"| `{key.rpartition('.')[2]}` |" not in page and key != "env"] == []
