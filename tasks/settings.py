"""Configuration: one typed model, filled from the environment, `athanor.yaml`, then defaults.

The command line passes its options as arguments, so the order is command line, `ATHANOR_*`, file, default.
"""

import difflib
import os
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, YamlConfigSettingsSource

from tasks.errors import ConfigError

REPOSITORY = Path(__file__).resolve().parent.parent
CONTRACTS = REPOSITORY / "data_contracts"
MARKERS = {"ATHANOR_SUPERVISOR"}  # set by the project itself for its child processes; no configuration


class StrictModel(BaseModel):
    """Base of every model read from a file: unknown keys are refused, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Settings(BaseSettings):
    """Where things live and how much of the machine to use."""

    model_config = SettingsConfigDict(env_prefix="ATHANOR_", yaml_file="athanor.yaml", extra="forbid")

    home: Path = Field(REPOSITORY / ".athanor", description="work folder of this machine: Airflow, jobs, caches")
    data: str = Field("", description="landing zone, a folder or s3://…; default: <home>/landing")
    store: str = Field("", description="where corpora and models are kept, a folder or s3://…; default: <home>/store")
    workers: int = Field(2, ge=1, description="Dask worker processes of one task on the embedded default")
    dask_scheduler: str | None = Field(None, description="address of a running Dask scheduler, e.g. tcp://host:8786")
    max_groups: int = Field(64, ge=1, le=256, description="most map indices of one mapped task")
    failed_budget: float = Field(0.0, ge=0, lt=1, description="share of a run's shards that may fail and be left out")
    hosts: str = Field("", description="addresses of the hosts that train together, by commas; the first is this one")
    airflow_port: int = Field(8080, ge=1, le=65535, description="wished port of the Airflow UI")
    recipe: str = Field("tiny", description="name of a recipe in data_contracts/recipes, or a path")
    curation: str = Field("default", description="name of a file in data_contracts/curation, or a path")
    notify_webhook: str = Field("", description="address that is told of failures and warnings, as JSON by POST")
    notify_mail: str = Field("", description="addresses that are told of them, by commas; server: athanor_smtp")
    deadline_hours: float = Field(24.0, gt=0, description="a run that takes longer is told of, and goes on")
    openlineage: bool = Field(False, description="tell OpenLineage of runs and tasks; costs each a second")
    domains: str = Field(str(CONTRACTS / "domains"), description="folder of the domains that models are retrained for")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, YamlConfigSettingsSource(settings_cls)

    @model_validator(mode="after")
    def _under_home(self) -> "Settings":
        self.data = self.data or str(self.home / "landing")
        self.store = self.store or str(self.home / "store")
        return self


def settings(**overrides: Any) -> Settings:
    """The configuration in force. Raises ConfigError that names the key and the nearest known one."""
    _check_environment()
    try:
        return Settings(**{key: value for key, value in overrides.items() if value is not None})
    except (yaml.YAMLError, TypeError, ValueError) as error:
        if not isinstance(error, ValidationError):
            raise ConfigError(f"athanor.yaml: cannot be used: {error}") from None
        raise ConfigError(explain(error, Settings, "the settings (ATHANOR_* or athanor.yaml)")) from None


def _check_environment() -> None:
    known = {f"ATHANOR_{name.upper()}" for name in Settings.model_fields} | MARKERS
    for name in sorted(os.environ):
        if name.startswith("ATHANOR_") and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known - MARKERS))}"
            raise ConfigError(f"environment: unknown variable {name}; {hint}")


Model = TypeVar("Model", bound=BaseModel)


def load_yaml(model: type[Model], path: Path | str) -> Model:
    """Read one YAML file into `model`.

    Raises ConfigError when the file is missing, is no YAML mapping, or does not fit the model; an unknown key is
    answered with the nearest known one.
    """
    path = Path(path)
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file{_siblings(path)}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected a mapping of keys to values, found {type(data).__name__}")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(explain(error, model, str(path))) from None


def named_file(folder: str, name: str) -> Path:
    """The file that `name` means: a path when it looks like one, else data_contracts/<folder>/<name>.yaml."""
    if name.endswith((".yaml", ".yml")) or "/" in name:
        return Path(name)
    return CONTRACTS / folder / f"{name}.yaml"


def explain(error: ValidationError, model: type[BaseModel], where: str) -> str:
    """One line for a person: where, which key, what is wrong, and for an unknown key the nearest known one."""
    lines = []
    for item in error.errors():
        location = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            unknown = str(item["loc"][-1])
            known = sorted(_known_keys(model))
            near = difflib.get_close_matches(unknown, known, n=1, cutoff=0.4)
            hint = f"; did you mean '{near[0]}'?" if near else f"; known keys: {', '.join(known)}"
            lines.append(f"unknown key '{location}'{hint}")
        else:
            lines.append(f"'{location}': {item['msg']} (found {item.get('input')!r:.80})")
    return f"{where}: " + "; ".join(lines)


def _known_keys(model: type[BaseModel], seen: frozenset[type] = frozenset()) -> set[str]:
    """Every key of the model and of the models inside it."""
    keys: set[str] = set()
    for name, field in model.model_fields.items():
        keys.add(field.alias or name)
        for inner in _models_in(field.annotation):
            if inner not in seen:
                keys |= _known_keys(inner, seen | {model, inner})
    return keys


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in getattr(annotation, "__args__", ()) for model in _models_in(argument)]


def _siblings(path: Path) -> str:
    names = sorted(item.stem for item in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.stem, names, n=1)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; there are: {', '.join(names)}" if names else ""
