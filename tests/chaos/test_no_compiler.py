"""A machine without a compiler: curation, DeepSpeed and export need none."""

import pytest

from tests.chaos.calm import Calm

pytestmark = pytest.mark.slow


def test_no_compiler_is_needed(calm: Calm) -> None:
    """The calm walk curates, trains with DeepSpeed and exports where PATH leads to no program at all."""
    assert calm.weights and calm.programs == []
