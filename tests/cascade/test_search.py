"""A small grid: keys and values checked before anything trains, a table and a plot afterwards."""

import re
from html.parser import HTMLParser
from typing import Any

import pytest
import yaml

from tasks.cascade.search import MOST_TRIALS, page, parse_grid, search
from tasks.errors import ConfigError
from tasks.settings import CONTRACTS


def test_grid_is_read():
    grid = parse_grid(["optimizer.learning_rate=1e-3,3e-3", "steps=100", "mixture=standard"])
    assert grid == {"optimizer.learning_rate": [0.001, 0.003], "steps": [100.0], "mixture": ["standard"]}


@pytest.mark.parametrize(
    "arguments", [[], ["steps"], ["steps="], ["steps=1", "steps=2"], [f"steps={','.join('1' * (MOST_TRIALS + 1))}"]]
)
def test_grid_that_cannot_be_is_refused(arguments):
    with pytest.raises(ConfigError, match="--grid"):
        parse_grid(arguments)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("optimizer.learning_rat", 1e-3, "did you mean 'learning_rate'"),
        ("steps", 0.5, "integer"),
        ("name.x", 1, "'name' of stage 'sft' holds no keys"),
    ],
)
def test_what_the_schema_refuses_is_refused_before_training(key, value, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        search("tiny", "sft", {key: [value]}, store=str(tmp_path / "store"), home=str(tmp_path / "home"))
    assert not (tmp_path / "store").exists()


def trial(rate: float, steps: int, loss: float | None, error: str = "") -> dict:
    values = {"optimizer.learning_rate": rate, "steps": steps}
    return {"values": values, "recipe": "000.yaml", "heldout_loss": loss, "error": error, "seconds": 2.0}


def test_page_has_every_trial_and_a_line_for_each_of_the_others():
    grid: dict[str, list[Any]] = {"optimizer.learning_rate": [1e-3, 3e-3], "steps": [10, 20]}
    trials = [trial(3e-3, 10, 2.5), trial(1e-3, 10, 2.75), trial(1e-3, 20, 3.0), trial(3e-3, 20, None, "<lost>")]
    html = page("tiny: sft", "heldout_loss", grid, trials)
    HTMLParser().feed(html)
    assert html.count("<tr>") == 1 + 4 and html.count("<polyline") == 2 and html.count("<circle") == 3
    assert "2.5000" in html and "&lt;lost&gt;" in html
    heights = [float(y) for y in re.findall(r'cy="([\d.]+)"', html)]
    assert min(heights) < max(heights), "a higher loss stands higher"
    assert "http" not in html, "opens offline"


def test_recipes_of_trials_are_whole(tmp_path):
    """What a trial trains is a recipe that anyone can run again."""
    from tasks.cascade.search import _trial_recipe

    values = {"optimizer.learning_rate": 2e-3, "steps": 30.0, "curriculum.strength": 2.0}
    path = _trial_recipe(str(CONTRACTS / "recipes" / "tiny.yaml"), "sft", values, tmp_path / "t.yaml")
    (stage,) = [stage for stage in yaml.safe_load(path.read_text())["stages"] if stage["name"] == "sft"]
    assert (stage["optimizer"]["learning_rate"], stage["steps"], stage["curriculum"]) == (2e-3, 30, {"strength": 2})
