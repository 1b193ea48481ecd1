"""Every shipped rule on either side of its threshold, in each language it serves; thresholds by source, kind, language.

Each case is a recipe for a document with a dial: one notch more, and the rule must fail. The test turns the dial to the
last document that passes and the first that fails.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from tasks.curation.config import load_curation
from tasks.curation.rules import failed_rules
from tasks.curation.signal_files import SCHEMA
from tasks.curation.signals import measure_all
from tasks.errors import ConfigError
from tasks.settings import CONTRACTS

CONFIG = load_curation("default")
Recipe = Callable[[int], str]

NOUNS = ["house", "river", "garden", "teacher", "letter", "window", "summer", "music", "doctor", "kitchen", "village"]
NOUNS += ["market", "winter", "bridge", "forest"]
VERBS = ["sees", "finds", "carries", "forgets", "remembers", "paints", "follows", "leaves", "builds", "watches"]


def sentence(seed: int) -> str:
    noise = random.Random(seed)
    first, second, third, fourth = noise.sample(NOUNS, 4)
    return f"The {first} near the {second} {noise.choice(VERBS)} a {third} and the {fourth} number{seed} with care."


def english(count: int = 12, joint: str = " ", first: int = 0) -> str:
    return joint.join(sentence(first + number) for number in range(count))


HAN = "山水风云雨雪花草树木河湖海洋天地人民国家城市乡村学校老师学生朋友时间问题历史文化科学技术经济社会自然生活工作音乐"


def clause(seed: int) -> str:
    noise = random.Random(seed)
    return f"在{noise.choice(HAN)}{noise.choice(HAN)}的{noise.choice(HAN)}里，他们是{''.join(noise.sample(HAN, 9))}了。"


def chinese(count: int = 20, joint: str = "", first: int = 0) -> str:
    return joint.join(clause(first + number) for number in range(count))


def dealt(total: int, changed: int, change: Callable[[str], str], make: Callable[[int], str] = sentence) -> str:
    """So many lines, the first of them changed."""
    lines = [make(number) for number in range(total)]
    return "\n".join([change(line) if number < changed else line for number, line in enumerate(lines)])


def code(lines: int = 12) -> str:
    return "\n".join(f"value_{number} = function_{number}(argument_{number * 7})" for number in range(lines))


FRENCH = " Le chat est sur la table avec les enfants dans le jardin."
NO_STOP_WORDS = "She sings loudly near rivers while children watch birds flying over green hills every summer morning. "

NO_STOP_CHARACTERS = "小明喜欢踢足球，小红喜欢弹钢琴。妈妈做饭，爸爸洗碗，奶奶看报纸。"


PHRASE = ["amber", "copper", "velvet", "marble", "silver", "cotton", "walnut", "ginger", "pepper", "saffron"]
FRUIT = ["苹果", "香蕉", "葡萄", "西瓜", "柠檬", "草莓", "樱桃", "芒果", "菠萝", "石榴"]


def grams(n: int) -> Recipe:
    """The same n words again and again, each time after other words."""

    def other(number: int) -> str:
        return " ".join([*random.Random(number).sample([*NOUNS, *VERBS], 2), f"item{number}"])

    return lambda k: " ".join(f"{other(m)} {' '.join(PHRASE[:n])}" if m < k else other(m) for m in range(40))


def chinese_grams(n: int) -> Recipe:
    words = [HAN[place : place + 2] for place in range(0, len(HAN) - 1, 2)]

    def other(number: int) -> str:
        return "".join(random.Random(number).sample(words, 3)) + "。"

    return lambda k: "".join(other(m) + ("".join(FRUIT[:n]) + "，") * (m < k) for m in range(40))


ENGLISH: dict[str, Recipe] = {
    "language_score": lambda k: english(4) + FRENCH * k,
    "min_characters": lambda k: english(4)[: 200 - k],
    "max_links": lambda k: english() + " See http://a.b now." * k,
    "gopher_words": lambda k: " ".join(english().split()[: 90 - k]),
    "gopher_word_length": lambda k: english() + " be" * 5 * k,
    "gopher_hashes": lambda k: english() + " #a" * k,
    "gopher_ellipses": lambda k: english() + " so..." * k,
    "gopher_bullet_lines": lambda k: dealt(40, k, lambda line: f"- {line}"),
    "gopher_ellipsis_lines": lambda k: dealt(40, k, lambda line: f"{line}.."),
    "gopher_words_with_letter": lambda k: english() + " 7" * k,
    "gopher_stop_words": lambda k: NO_STOP_WORDS * 3 + " ".join(["with", "have", "that"][k:]),
    "gopher_duplicate_lines": lambda k: dealt(40, k, lambda line: "The same line stands here again."),
    "gopher_duplicate_paragraphs": lambda k: dealt(40, k, lambda line: "The same thing.").replace("\n", "\n\n"),
    "gopher_duplicate_line_characters": lambda k: dealt(40, k, lambda line: sentence(99)),
    "gopher_duplicate_paragraph_characters": lambda k: dealt(40, k, lambda line: sentence(99)).replace("\n", "\n\n"),
    **{f"gopher_top_{n}_gram": grams(n) for n in (2, 3, 4)},
    **{f"gopher_duplicate_{n}_gram": grams(n) for n in range(5, 11)},
    "c4_sentences": lambda k: english(9 - k, " "),
    "c4_lorem_ipsum": lambda k: english() + " Lorem Ipsum" * k,
    "c4_curly_bracket": lambda k: english() + " {" * k,
    "fineweb_punctuated_lines": lambda k: dealt(40, k, lambda line: line[:-1]),
    "fineweb_short_lines": lambda k: dealt(40, k, lambda line: line[:29]),
    "fineweb_repeated_lines": lambda k: "\n".join([english(40, "\n"), *["So it is."] * k]),
    "fineweb_newlines": lambda k: english(20, "\n") + "\n" * k + "The end of it.",
    "non_alphanumeric": lambda k: english() + " !!!!" * k,
    "digits": lambda k: english() + " 12345" * k,
    "urls": lambda k: f"{english(4)} http://a.b/{'x' * 8 * k}",
    "white_space": lambda k: english() + "  " * k + "The end.",
    "parentheses": lambda k: english() + " (a)" * k,
    "safety_lexicon": lambda k: english(30) + " shit" * k,
}  # fmt: skip
ZH: dict[str, Recipe] = {
    "language_score": lambda k: chinese(6) + " information" * k,
    "min_characters": lambda k: chinese()[: 150 - k],
    "max_links": lambda k: chinese() + "见 http://a.b 。" * k,
    "gopher_word_length": lambda k: chinese(2) + "中华人民共和国" * k,
    "gopher_words_with_letter": lambda k: chinese() + "，8" * k,
    "gopher_stop_words": lambda k: NO_STOP_CHARACTERS * 4 + "".join(["由", "而", "也"][k:]),
    "gopher_duplicate_lines": lambda k: dealt(40, k, lambda line: "这一行又出现。", clause),
    **{f"gopher_top_{n}_gram": chinese_grams(n) for n in (2, 3, 4)},
    **{f"gopher_duplicate_{n}_gram": chinese_grams(n) for n in range(5, 11)},
    "fineweb_punctuated_lines": lambda k: dealt(40, k, lambda line: line[:-1], clause),
    "fineweb_repeated_lines": lambda k: "\n".join([chinese(40, "\n"), *[clause(99)] * k]),
    "fineweb_newlines": lambda k: chinese(20, "\n") + "\n" * 4 * k + "完。",
    "safety_lexicon": lambda k: chinese(20) + "，他妈的" * k,
}  # fmt: skip
CODE: dict[str, Recipe] = {
    "min_characters": lambda k: code()[: 150 - k],
    "code_mean_line": lambda k: "\n".join(line + " + 1" * k for line in code().split("\n")),
    "code_longest_line": lambda k: f"{code(60)}\nlong = {'1' * (20 * k)}",
    "code_alphanumeric": lambda k: code(4) + "\n" + "();\n" * 4 * k,
    "code_generated": lambda k: ("# Do not edit.\n" if k else "") + code(),
    "code_duplicate_lines": lambda k: code() + "\ntotal = total + another_value" * k,
}  # fmt: skip
CASES: list[tuple[str, str | None, str, Recipe]] = [("en", None, rule, recipe) for rule, recipe in ENGLISH.items()]
CASES += [("zh", None, rule, recipe) for rule, recipe in ZH.items()]
CASES += [("code", "code", rule, recipe) for rule, recipe in CODE.items()]


def reasons(texts: list[str], kind: str | None, config: Any = CONFIG, source: str = "web") -> list[dict[str, Any]]:
    """Rule → reason of each text."""
    found = measure_all([(text, kind) for text in texts], config)
    rows = [
        {"language": item.language, "kind": item.kind, "source": source, "nothing_left": False, **item.values}
        for item in found
    ]
    failed = failed_rules(pa.Table.from_pylist(rows, schema=SCHEMA), config)
    return [{reason["rule"]: reason for reason in row} for row in failed]


def test_every_shipped_rule_has_its_case() -> None:
    shipped = {(name, rule) for name, rule_set in CONFIG.rules.items() for rule in rule_set.bounds}
    assert {(name, rule) for name, _, rule, _ in CASES} == shipped


@pytest.mark.parametrize("name, kind, rule, recipe", CASES, ids=[f"{name}-{rule}" for name, _, rule, _ in CASES])
def test_either_side_of_the_threshold(name: str, kind: str | None, rule: str, recipe: Recipe) -> None:
    found: list[dict[str, Any]] = []
    for first in range(0, 300, 50):
        found += reasons([recipe(notch) for notch in range(first, first + 50)], kind or "prose")
        if any(rule in failed for failed in found):
            break
    fails = [rule in failed for failed in found]
    assert not fails[0], f"the first document fails already: {found[0][rule]}"
    assert any(fails), f"no document fails; the last fails {sorted(found[-1])}"
    reason = found[fails.index(True)][rule]
    bound = CONFIG.rules[name].bounds[rule]
    assert reason["threshold"] in (bound.min, bound.max)
    low = reason["threshold"] == bound.min and reason["value"] < reason["threshold"]
    assert low or reason["value"] > reason["threshold"]


def test_the_upper_ends_of_two_sided_rules() -> None:
    words = english(6) + " word" * 100_000
    long = english(6) + " incomprehensibilities" * 60
    short = "的 一 二 三 四 五 是 了 " * 20
    assert reasons([words], "prose")[0]["gopher_words"]["threshold"] == 100_000
    assert reasons([long], "prose")[0]["gopher_word_length"]["threshold"] == 10
    assert "gopher_word_length" not in reasons([short], "prose")[0]


def configured(tmp_path: Path, overrides: list[dict[str, Any]]) -> Any:
    shipped = yaml.safe_load((CONTRACTS / "curation" / "default.yaml").read_text(encoding="utf-8"))
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({**shipped, "overrides": overrides}, allow_unicode=True), encoding="utf-8")
    return load_curation(str(path))


def test_thresholds_by_source_kind_and_language(tmp_path: Path) -> None:
    text = english(4)
    longer = {"min_characters": {"signal": "characters", "min": 5000}}
    config = configured(
        tmp_path,
        [
            {"source": "books", "bounds": longer},
            {"source": "books", "kind": "dialogue", "without": ["min_characters"]},
            {"language": "zh", "bounds": longer},
        ],
    )
    assert "min_characters" not in reasons([text], "prose", config, "web")[0]
    assert reasons([text], "prose", config, "books")[0]["min_characters"]["threshold"] == 5000
    assert "min_characters" not in reasons([text], "dialogue", config, "books")[0]
    assert reasons([chinese()], "prose", config)[0]["min_characters"]["threshold"] == 5000


@pytest.mark.parametrize(
    "override, message",
    [
        ({"bounds": {"x": {"signal": "words", "min": 1}}}, "needs a 'source', a 'kind' or a 'language'"),
        ({"source": "web"}, "needs 'bounds' or 'without'"),
        ({"source": "web", "without": ["gopher_word"]}, "did you mean 'gopher_words'"),
        ({"source": "web", "bounds": {"x": {"signal": "wordz", "min": 1}}}, "did you mean 'words'"),
        ({"sauce": "web", "without": ["digits"]}, "source"),
    ],
)
def test_a_wrong_override_is_named(tmp_path: Path, override: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configured(tmp_path, [override])


def test_thresholds_leave_the_signals_as_they_are(tmp_path: Path) -> None:
    config = configured(tmp_path, [{"source": "web", "without": ["digits"]}])
    assert config.signals_hash == CONFIG.signals_hash
    assert config.hash != CONFIG.hash
