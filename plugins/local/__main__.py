"""`python -m plugins.local run|up|down`: what `make run`, `make up` and `make down` call."""

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from plugins.local.run import down, run, up
from tasks.errors import AthanorError, ConfigError
from tasks.parent_death import end_with_parent
from tasks.settings import Settings, settings

COMMANDS = {"run": run, "up": up, "down": down}


def main() -> int:
    """Exit status: 0 done, 1 failed, 2 wrong configuration, 130 and 143 interrupted."""
    parser = argparse.ArgumentParser(prog="python -m plugins.local", description=__doc__)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--data", help="landing zone: a folder or s3://…; default: a sample from this machine")
    parser.add_argument("--store", help="where corpora and models are kept: a folder or s3://…")
    parser.add_argument("--recipe", help="a recipe's name or path")
    parser.add_argument("--port", type=int, help="wished port of the Airflow UI")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGHUP, _leave)
    if "MAKELEVEL" in os.environ and given.command != "up":
        end_with_parent()  # a signal to `make` alone must end the run, too
    try:
        config = settings(
            data=given.data or None,
            store=given.store or None,
            recipe=given.recipe or None,
            airflow_port=given.port,
        )
        return COMMANDS[given.command](absolute(config))
    except ConfigError as error:
        print(f"athanor: {error}", file=sys.stderr)
        return 2
    except AthanorError as error:
        print(f"athanor: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nathanor: interrupted; everything that was started has ended. `make run` goes on where it stopped")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read the output has gone
        return 141


def absolute(config: Settings) -> Settings:
    """The same settings with full paths: Airflow's tasks work in another folder than the terminal."""
    places = {"data": config.data, "store": config.store}
    files = {"recipe": config.recipe, "curation": config.curation}
    full = {key: value if "://" in value else str(Path(value).resolve()) for key, value in places.items()}
    full |= {key: str(Path(value).resolve()) for key, value in files.items() if value.endswith((".yaml", ".yml"))}
    return config.model_copy(update={"home": config.home.resolve(), **full})


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
