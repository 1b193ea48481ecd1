"""The typed model of a contract: what a gate reads, which columns it finds there, and what must hold.

A contract is a YAML file of `data_contracts/`; see the README there.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from tasks.corpus.artifact import content_hash
from tasks.errors import ConfigError
from tasks.settings import StrictModel, load_yaml, named_file

Form = Literal["corpus", "instructions", "metrics", "tokens"]
Severity = Literal["critical", "warning"]

# Which views, each a table, the readers in `tasks.gates.frames` make of a subject's form.
VIEWS: dict[str, frozenset[str]] = {
    "corpus": frozenset({"summary", "shards", "documents"}),
    "instructions": frozenset({"summary", "records"}),
    "metrics": frozenset({"metrics"}),
    "tokens": frozenset({"summary", "sequences"}),
}

# Arguments of Great Expectations that name columns, alone or in lists.
COLUMN_ARGUMENTS = ("column", "column_A", "column_B", "column_list")


class Column(StrictModel):
    """A column that must be there. A value that is missing or not finite is a failure unless `nullable`."""

    type: Literal["string", "integer", "number", "boolean"]
    nullable: bool = False


class Expectation(StrictModel):
    """One expectation of Great Expectations, and what it means to a person."""

    expectation: str = Field(pattern="^expect_[a-zA-Z_]+$", description="as Great Expectations calls it")
    kwargs: dict[str, Any] = Field(default_factory=dict, description="its arguments")
    severity: Severity = Field(description="critical: a failure refuses; warning: a failure is shown")
    meaning: str = Field(min_length=1, description="one sentence: what holds when this is met")
    remedy: str = Field(min_length=1, description="what to do when it is not")

    @property
    def columns(self) -> list[str]:
        """The columns that the arguments name."""
        named = [self.kwargs[name] for name in COLUMN_ARGUMENTS if name in self.kwargs]
        return [column for value in named for column in (value if isinstance(value, list) else [value])]


def _spelled_out(value: Any) -> Any:
    """`doc_id: string` is short for `doc_id: {type: string}`."""
    return {"type": value} if isinstance(value, str) else value


class Frame(StrictModel):
    """One table: a view of a subject, its columns, and what must hold for them."""

    subject: str
    view: str
    title: str = Field(min_length=1)
    identify: list[str] = Field(default_factory=list, description="columns that say which row an offending row is")
    columns: dict[str, Annotated[Column, BeforeValidator(_spelled_out)]] = Field(min_length=1)
    expectations: list[Expectation] = Field(min_length=1)


class Contract(StrictModel):
    """What a gate holds its subjects against."""

    schema_version: Literal[1]
    name: str = Field(pattern="^[a-z0-9_-]+$")
    title: str = Field(min_length=1)
    description: str = Field(min_length=1)
    reads: dict[str, Form] = Field(min_length=1, description="subject name → form")
    frames: dict[str, Frame] = Field(min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> "Contract":
        for name, frame in self.frames.items():
            if frame.subject not in self.reads:
                raise ValueError(f"frame '{name}' reads '{frame.subject}'; 'reads' names only {', '.join(self.reads)}")
            views = VIEWS[self.reads[frame.subject]]
            if frame.view not in views:
                raise ValueError(f"frame '{name}': no view '{frame.view}'; there are {', '.join(sorted(views))}")
            used = [*frame.identify, *(column for item in frame.expectations for column in item.columns)]
            for column in used:
                if column not in frame.columns:
                    raise ValueError(f"frame '{name}': column '{column}' is used but not among its 'columns'")
        return self

    @property
    def hash(self) -> str:
        """Hash of all that the contract says; a changed threshold changes it."""
        return content_hash(self.model_dump(mode="json"))


def load_contract(name: str) -> Contract:
    """The contract `data_contracts/<name>.yaml`, or the one at a path.

    Raises ConfigError when there is none, when it has an unknown key (naming the nearest known one), or when its
    name is not its file's.
    """
    path = Path(named_file("", name))
    contract = load_yaml(Contract, path)
    if contract.name != path.stem:
        raise ConfigError(f"{path}: 'name' is '{contract.name}'; expected '{path.stem}', as the file is called")
    return contract
