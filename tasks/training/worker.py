"""One rank of a job: `python -m tasks.training.worker JOBDIR TOKEN ATTEMPT`, started by `tasks.training.launch`."""

import os
import sys
import traceback
from importlib import import_module

from tasks.errors import AthanorError
from tasks.training.context import Context
from tasks.training.job import Job
from tasks.training.launch import job_error


def main(folder: str, token: int, attempt: int) -> int:
    """Run the stage; 0 when it went well. The reason of a failure is left in error-<token>.txt."""
    job = Job.load(folder)
    spec = job.spec
    rank, supervisor = int(os.environ["RANK"]), int(os.environ["ATHANOR_SUPERVISOR"])
    context = Context(job, spec, token, rank, supervisor, ranks=int(os.environ["WORLD_SIZE"]), attempt=attempt)
    try:
        import_module(f"tasks.training.stages.{spec.kind}").run(context)
    except AthanorError as error:
        job_error(job.folder, token, str(error))
        traceback.print_exc()
        return 1
    except Exception as error:  # noqa: BLE001 - whatever it is, the supervisor must be told
        job_error(job.folder, token, f"{type(error).__name__}: {error} (rank {context.rank}; see {job.log})")
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.stdout.flush()
    # Not sys.exit: a rank that failed must not wait for others in the process group's destructor.
    code = main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
