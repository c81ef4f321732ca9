"""Of a recording the model that the CPU engine runs, of whichever kind it is. Must not import torch."""

from penstock.models.config import DecoderConfig
from penstock.models.encoder_decoder_config import EncoderDecoderConfig
from penstock.models.native import NativeDecoder, NativeModel, tell
from penstock.models.native_encoder_decoder import NativeEncoderDecoder
from penstock.models.recording import Recording
from penstock.parallel.group import ALONE, TensorGroup


def on_cpu_engine(
    config: DecoderConfig | EncoderDecoderConfig,
    parameters: int,
    recording: Recording,
    instruction_set: str,
    threads: int,
    group: TensorGroup = ALONE,
) -> NativeModel:
    """The model of a recording."""
    made: NativeModel
    if isinstance(config, EncoderDecoderConfig):
        made = NativeEncoderDecoder(config, parameters, recording, instruction_set, threads, group)
    else:
        made = NativeDecoder(config, parameters, recording, instruction_set, threads, group)
    tell(f"the CPU engine runs the model: {instruction_set}, {made.weight_formats}, threads: {threads}")
    return made
