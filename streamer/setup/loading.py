"""A model loaded as the settings say, while a person sees how far it is."""

import logging

from streamer.settings.table import ModelSettings, Settings
from streamer.setup.auto import choose_model
from streamer.setup.progress import show_progress
from streamer.whisper.adapters import NONE
from streamer.whisper.device.allocator import give_back_large_blocks
from streamer.whisper.device.devices import DeviceSettings
from streamer.whisper.device.sizes import WHOLE_WINDOW
from streamer.whisper.loading import LoadOptions
from streamer.whisper.model import WhisperModel, load_model
from streamer.whisper.option_checks import check_options_of_model
from streamer.whisper.shipped import limits

logger = logging.getLogger(__name__)


def load(
    settings: ModelSettings, *, n_beams: int | None = None, live: bool = True, at_once: bool = False
) -> WhisperModel:
    """Load the model that the settings name, for `n_beams` beams. Raises what `load_model` raises.

    None stands for as many beams as the model names for `live` captions, and for five in files.
    Only `live` captions use graphs for windows of less than 30 s. `at_once` is for what runs on: no NPU's compiler is
    waited for.
    """
    give_back_large_blocks()
    with show_progress(settings.name) as progress:
        model = load_model(
            settings.name,
            LoadOptions(
                device_settings(settings),
                tokenizer=settings.tokenizer,
                lora=settings.lora,
                cache_dir=settings.cache_dir,
                n_beams=n_beams,
                live=live,
                at_once=at_once,
                weights=settings.weights,
                windows_s=(settings.windows_s or None) if live else WHOLE_WINDOW,
                adapter=settings.adapter if live else NONE,
            ),
            on_download=progress.fetched,
            on_compiled=progress.compiled,
        )
    if notice := limits(model.origin):
        logger.warning("%s", notice)
    return model


def load_chosen(settings: Settings, *, live: bool = True, at_once: bool = False) -> tuple[Settings, WhisperModel]:
    """Load the model of the settings, which must fit it; return them with its name, if they say auto, and the model.

    Raises what `choose_model` and `load_model` raise, and ConfigError if the settings do not fit the model.
    """
    settings = choose_model(settings, live=live)
    model = load(settings.model, n_beams=settings.decoding.beam_size, live=live, at_once=at_once)
    check_options_of_model(settings.decoding, model)
    return settings, model


def device_settings(settings: ModelSettings) -> DeviceSettings:
    return DeviceSettings(
        device=settings.device,
        encoder_device=settings.encoder_device,
        decoder_device=settings.decoder_device,
        properties=settings.properties,
        encoder_properties=settings.encoder_properties,
        decoder_properties=settings.decoder_properties,
        npu_through_cpu=settings.npu_through_cpu,
    )
