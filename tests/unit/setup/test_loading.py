"""A model is loaded as the settings say, and must fit them."""

import logging

import pytest

from streamer.errors import ConfigError
from streamer.settings.table import ModelSettings, Settings
from streamer.setup.loading import device_settings, load, load_chosen
from streamer.whisper.device.devices import DeviceSettings

NANO = ModelSettings(name="nano.en", device="CPU")


def test_devices_and_properties_are_those_of_the_settings() -> None:
    given = {"device": "NPU", "encoder_device": "GPU", "decoder_device": "CPU", "npu_through_cpu": True}
    given |= {"properties": ("A=1",), "encoder_properties": ("B=2",), "decoder_properties": ("C=3",)}
    assert device_settings(ModelSettings(**given)) == DeviceSettings(**given)  # type: ignore[arg-type]


def test_captions_have_short_windows_and_files_have_five_beams(caplog: pytest.LogCaptureFixture) -> None:
    live, files = load(NANO), load(NANO, live=False)
    assert [*live.runtime.windows_s] == [5, 10, 30]
    assert ([*files.runtime.windows_s], files.n_beams) == ([30], 5)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2  # it is for trying things out


def test_a_model_that_does_not_fit_the_settings_is_refused() -> None:
    settings = Settings(model=NANO)
    found, model = load_chosen(settings.having({"decoding.beam_size": 3}), live=False)
    assert (found.model.name, model.name, model.n_beams) == ("nano.en", "nano.en", 3)
    with pytest.raises(ConfigError):
        load_chosen(settings.having({"decoding.language": "de"}), live=False)
