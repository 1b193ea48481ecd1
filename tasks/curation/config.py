"""The curation configuration: a typed model of the files in `data_contracts/curation`."""

from difflib import get_close_matches
from functools import cached_property
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from tasks.corpus.artifact import content_hash
from tasks.corpus.document import KINDS
from tasks.errors import ConfigError
from tasks.settings import StrictModel, load_yaml, named_file


class LanguageConfig(StrictModel):
    """Language identification with fastText's lid.176."""

    head_characters: int = Field(1000, ge=1, description="characters looked at")
    undetermined_below: float = Field(0.3, ge=0, le=1, description="below this score the language is 'und'")


class ParagraphConfig(StrictModel):
    """Paragraphs of prose that repeat an earlier one, exactly or nearly, are cut."""

    min_tokens: int = Field(30, ge=5, description="words, or characters of a script without spaces; shorter ones stay")
    threshold: float = Field(0.9, gt=0, lt=1, description="exact Jaccard of the shingle sets")
    permutations: int = Field(64, ge=8, le=1024)


class SentenceConfig(StrictModel):
    """Sentences of prose that stand word for word in many documents are cut from all but the first."""

    min_tokens: int = Field(10, ge=3, description="words, or characters of a script without spaces; shorter ones stay")
    documents: int = Field(3, ge=2, description="in at least so many documents")


class DedupConfig(StrictModel):
    """Near-duplicate search. Two documents are duplicates when their shingle sets' Jaccard is ≥ `threshold`."""

    threshold: float = Field(0.8, gt=0, lt=1)
    words: int = Field(5, ge=1, description="words of a shingle in scripts with spaces")
    characters: int = Field(8, ge=1, description="code points of a shingle in scripts without spaces")
    permutations: int = Field(128, ge=8, le=1024)
    seed: int = Field(1, ge=0, lt=2**32)
    recall_weight: float = Field(
        0.999, gt=0, lt=1, description="weight of a missed pair when datasketch picks bands × rows"
    )
    memory_budget: int = Field(2048, ge=64, description="MiB that a worker may use for clustering; changes no result")
    max_comparisons: int = Field(
        100_000, ge=1, description="earlier survivors looked at for one document; the report counts where it acts"
    )
    paragraphs: ParagraphConfig | None = Field(None, description="absent: paragraphs are not compared")
    sentences: SentenceConfig | None = Field(None, description="absent: sentences are not compared")
    min_characters: int = Field(100, ge=1, description="with less left after cuts of these levels, a text is dropped")


class Bound(StrictModel):
    """A rule: the named signal must lie within [min, max]."""

    signal: str
    min: float | None = Field(None, allow_inf_nan=False)
    max: float | None = Field(None, allow_inf_nan=False)
    because: str = Field("", description="where the threshold comes from")

    @model_validator(mode="after")
    def _bounded(self) -> "Bound":
        if self.min is None and self.max is None:
            raise ValueError("a rule needs 'min', 'max' or both")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min:g} is above max {self.max:g}; no document could pass")
        return self


class RuleSet(StrictModel):
    """What one language (or `code`) must hold, and which lines are cut."""

    stop_words: list[str] = Field(default_factory=list)
    bounds: dict[str, Bound] = Field(default_factory=dict)
    cut_lines: dict[str, list[str]] = Field(
        default_factory=dict, description="rule name → phrases; a line that holds one is removed"
    )
    @field_validator("cut_lines")
    @classmethod
    def _phrases(cls, rules: dict[str, list[str]]) -> dict[str, list[str]]:
        for rule, phrases in rules.items():
            for phrase in phrases:
                if not phrase.strip() or phrase != phrase.lower():
                    raise ValueError(f"{rule}: phrase {phrase!r} must be lower case and not blank, as lines are")
        return rules

    lexicon: Literal["en", "zh"] | None = Field(None, description="word list of the safety rule")
    lexicon_allow: list[str] = Field(default_factory=list, description="terms that are not to count, with good reason")


class Override(StrictModel):
    """Other thresholds for the documents of a source, a kind, a language, or what all those given have in common."""

    source: str | None = None
    kind: Literal[KINDS] | None = None  # type: ignore[valid-type]
    language: str | None = None
    bounds: dict[str, Bound] = Field(default_factory=dict, description="rules to add or to replace by name")
    without: list[str] = Field(default_factory=list, description="rules that do not hold here")

    @model_validator(mode="after")
    def _says_something(self) -> "Override":
        if not (self.source or self.kind or self.language):
            raise ValueError("an override needs a 'source', a 'kind' or a 'language'; else change the rules themselves")
        if not (self.bounds or self.without):
            raise ValueError("an override needs 'bounds' or 'without'")
        return self

    def fits(self, language: str, kind: str, source: str) -> bool:
        wanted = (self.language, self.kind, self.source)
        return all(want in (None, own) for want, own in zip(wanted, (language, kind, source), strict=True))


class CurationConfig(StrictModel):
    """Everything that decides what is kept. Its hash is part of every content key."""

    schema_version: Literal[1]
    max_record_bytes: int = Field(256 << 20, ge=1024, description="a longer row is quarantined unread")
    max_characters: int = Field(10_000_000, ge=1000, description="a longer document is quarantined unmeasured")
    language: LanguageConfig = LanguageConfig()
    dedup: DedupConfig = DedupConfig()
    rules: dict[str, RuleSet] = Field(description="language code, or 'code' for the kind, → rules")
    overrides: list[Override] = Field(default_factory=list, description="in this order; later ones win")

    @model_validator(mode="after")
    def _known_rules(self) -> "CurationConfig":
        known = {rule for rule_set in self.rules.values() for rule in rule_set.bounds}
        for number, override in enumerate(self.overrides):
            for rule in override.without:
                if rule not in known:
                    near = get_close_matches(rule, known, n=1)
                    hint = f"did you mean {near[0]!r}?" if near else f"rules: {', '.join(sorted(known))}"
                    raise ValueError(f"overrides.{number}.without: no rule is named {rule!r}; {hint}")
        return self

    @cached_property
    def hash(self) -> str:
        return content_hash(self.model_dump(exclude={"dedup": {"memory_budget"}}))

    def measuring(self) -> dict[str, Any]:
        """What signals depend on: thresholds are left out, so they can be cut again for nothing."""
        rules = {name: rule.model_dump(exclude={"bounds"}) for name, rule in self.rules.items()}
        signatures = self.dedup.model_dump(include={"words", "characters", "permutations", "seed"})
        return {**self.model_dump(exclude={"rules", "overrides"}), "dedup": signatures, "rules": rules}

    @cached_property
    def signals_hash(self) -> str:
        return content_hash(self.measuring())

    def measuring_passages(self) -> dict[str, Any]:
        """What the recorded paragraphs and sentences depend on, besides what signals do; empty when nothing asks."""
        found: dict[str, Any] = {}
        if self.dedup.paragraphs:
            found["paragraphs"] = self.dedup.paragraphs.model_dump(exclude={"threshold"})
        if self.dedup.sentences:
            found["sentences"] = self.dedup.sentences.model_dump(exclude={"documents"})
        return found

    def rule_set(self, language: str, kind: str) -> RuleSet | None:
        """The rules of a document; None when its language has none."""
        return self.rules.get("code" if kind == "code" else language)

    def bounds(self, language: str, kind: str, source: str) -> dict[str, Bound] | None:
        """Rule → bound for one document, overrides applied; None when its language has no rules."""
        rule_set = self.rule_set(language, kind)
        if rule_set is None:
            return None
        bounds = dict(rule_set.bounds)
        for override in self.overrides:
            if override.fits(language, kind, source):
                bounds |= override.bounds
                for rule in override.without:
                    bounds.pop(rule, None)
        return bounds


def load_curation(name: str) -> CurationConfig:
    """The configuration of that name, or at that path. Raises ConfigError when it names an unknown signal or key."""
    from tasks.curation.dedup.shingles import new_index
    from tasks.curation.signals import check_signals

    path = named_file("curation", name)
    config = load_yaml(CurationConfig, path)
    check_signals(config, str(path))
    try:
        new_index(config.dedup)
    except ValueError as error:
        raise ConfigError(f"{path}: dedup: no bands fit this threshold and number of permutations: {error}") from None
    return config
