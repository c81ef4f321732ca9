"""Which layers a stage of a pipeline has."""

from penstock.models.config import DecoderConfig
from penstock.parallel.group import Pipeline, TensorGroup


def stage_of(config: DecoderConfig, at: int, stages: int) -> range:
    """The layers of one of so many stages."""
    return config.layers_of(TensorGroup(pipeline=Pipeline(at, stages, TensorGroup(at, stages))))
