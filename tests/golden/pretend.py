"""A process that takes itself for one on a GPU, but interprets kernels."""

from dataclasses import replace

from nvfp4_suite.ci import recording
from nvfp4_suite.ci.recording import Engine

from .processes import GPU


def start(engine: str) -> Engine:
    """Stands in for recording.start, for the engine gpu."""
    return replace(recording.start("interpreter"), name="sm_90", facts=GPU, speed="data center")
