"""Stage *adapt*: a tuned model and a small domain's records → the same model, a little more at home in the domain.

It is tuned like *sft*; what differs is the schema, which allows a rate of 1e-7 to 1e-6 and hundreds of steps alone, and
the gate, which looks at the domain and at everything else.
"""

from tasks.training.context import Context
from tasks.training.stages import sft


def run(context: Context) -> None:
    """Adapt the parent to the domain."""
    sft.run(context)
