"""Conversations about programs and packages, and translations, from descriptions, manuals and message catalogues."""

import re
from collections.abc import Callable, Iterator

from tasks.sample import man_pages
from tasks.sample.conversation import Conversation, first_paragraph, is_sentence
from tasks.sample.distributions import packages
from tasks.sample.sample import Sample, interleaved, is_chinese, rank, shuffled
from tasks.sample.system import description, system_packages
from tasks.sample.translations import Catalogue, catalogues

MAX_ANSWER = 1200  # characters
_COMMAND_PAGE = re.compile(r"/man[168]/([^/]+)\.[168][a-z]*$")
_DESCRIPTION = re.compile(r"^(?:DESCRIPTION|描述|說明|说明)\n+(.+?)(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
_MARKUP = re.compile(r"^[#=*`|<>\[!.:\-+]|https?://|```|\|")

_TO_CHINESE = {
    False: ("Translate into Simplified Chinese:\n\n{}", "把下面的英文翻译成简体中文：\n\n{}"),
    True: ("Translate into Traditional Chinese:\n\n{}", "把下面的英文翻譯成繁體中文：\n\n{}"),
}
_TO_ENGLISH = {
    False: ("Translate into English:\n\n{}", "把下面的中文翻译成英文：\n\n{}"),
    True: ("Translate into English:\n\n{}", "把下面的中文翻譯成英文：\n\n{}"),
}


def descriptions(seed: int) -> Iterator[Conversation]:
    """What a package or a command is, asked and answered in English, and in Chinese where its manual is."""
    yield from _commands(man_pages.chinese(seed), "`{}` 命令有什么用？", is_chinese)
    yield from _python_packages(seed)
    yield from _system_packages(seed)
    yield from _commands(man_pages.english(seed), "What does the command `{}` do?", is_sentence)


def translations(seed: int) -> Iterator[Conversation]:
    """Program messages between English and Chinese, one of each catalogue in turn; a message appears once."""
    pairs = [
        (catalogue, number, english, chinese)
        for catalogue in catalogues()
        for number, (english, chinese) in enumerate(catalogue.messages)
        if 25 <= len(english) <= 400 and len(english.split()) >= 4 and is_chinese(chinese, share=0.5)
    ]
    ordered = interleaved(pairs, seed, lambda pair: pair[0].name, lambda pair: f"{pair[0].name}#{pair[1]}")
    for catalogue, number, english, chinese in ordered:
        yield _translation(catalogue, f"{catalogue.name}#message-{number}", english.strip(), chinese.strip(), seed)


def _translation(catalogue: Catalogue, name: str, english: str, chinese: str, seed: int) -> Conversation:
    draw = rank(seed, name)
    to_chinese = draw[0] % 4 > 0  # one in four goes back into English
    prompts = (_TO_CHINESE if to_chinese else _TO_ENGLISH)[catalogue.traditional]
    given, wanted = (english, chinese) if to_chinese else (chinese, english)
    turn = (prompts[draw[1] % len(prompts)].format(given), wanted)
    return Conversation(name, "translation", "translations-zh", (turn,))


def _python_packages(seed: int) -> Iterator[Conversation]:
    for package in shuffled(packages(), seed, lambda package: package.name):
        summary = package.summary.strip()
        if len(summary.split()) < 5 or package.version in summary:
            continue
        paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", package.description[:6000]))
        prose = next((part for part in paragraphs if is_sentence(part) and not _MARKUP.search(part)), "")
        answer = summary.rstrip(".") + "." + (f"\n\n{prose}" if prose and len(prose) <= MAX_ANSWER else "")
        question = f"What is the Python package `{package.name}`?"
        name = f"{package.name}-{package.version}#summary"
        yield Conversation(name, "general", "package-descriptions", ((question, answer),))


def _system_packages(seed: int) -> Iterator[Conversation]:
    for name in shuffled(system_packages(), seed, str):
        _, _, body = description(system_packages()[name]).partition("\n\n")
        answer = first_paragraph(body)
        if is_sentence(answer) and len(answer) <= MAX_ANSWER:
            question = f"What is in the Debian package `{name}`?"
            yield Conversation(f"debian/{name}#summary", "general", "debian-descriptions", ((question, answer),))


def _commands(pages: Iterator[Sample], question: str, accept: Callable[[str], bool]) -> Iterator[Conversation]:
    for page in pages:
        command = _COMMAND_PAGE.search(page.id)
        found = _DESCRIPTION.search(page.text)
        answer = found[1].strip() if found else ""
        if command and 20 <= len(answer) <= MAX_ANSWER and accept(answer):
            turn = (question.format(command[1]), answer)
            yield Conversation(f"{page.id}#description", "general", page.source, (turn,))
