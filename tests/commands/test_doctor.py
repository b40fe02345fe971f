"""Machines with something wrong, and what `streamer doctor` says of them."""

import asyncio
import dataclasses
import io
import os
import re
import shutil
import socket
import tempfile
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from streamer.commands import doctor, fit
from streamer.commands.doctor import (
    CHECKS,
    TABLE_WIDTH,
    Finding,
    Machine,
    Verdict,
    check_cache,
    check_configuration,
    check_gpu,
    check_hub,
    check_microphone,
    check_model,
    check_npu,
    check_openvino,
    check_port,
    check_portaudio,
    check_sizes,
    check_stages,
    check_system_sound,
    diagnose,
    run_check,
    show,
)
from streamer.commands.invocation import Invocation
from streamer.commands.probes import Audio, Inference, answer_speed
from streamer.errors import ConfigError
from streamer.settings.table import Settings
from streamer.whisper.hub import cache
from tests.server.support import serving
from tests.whisper.support import NANO

OK, WARNING, PROBLEM = Verdict.OK, Verdict.WARNING, Verdict.PROBLEM

CPU_ONLY = Inference("2026.4.1", {"CPU": "Some Processor"})
ALL = Inference("2026.4.1", {"CPU": "Some Processor", "GPU": "Arc", "NPU": "Intel(R) AI Boost, driver 1688"})
# About that of two cores of a server: a layer of small takes 0.03 s in 5 s of audio.
SPEED = {"flops": 150e9, "step_bytes": 11e9, "block_bytes": 2.5e9}
HEADSET = Audio(("Webcam", "Headset"), "Headset")

Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def _nothing_of_this_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STREAMER_CONFIG", "STREAMER_CACHE_DIR", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("streamer.settings.load.default_config_path", lambda: tmp_path / "user" / "config.yaml")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**12, 0, 10**12))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine on which all is well, but that has no accelerator."""
    root = tmp_path / "root"
    root.mkdir()
    whole = Machine(
        settings=Settings(),
        inference=CPU_ONLY,
        audio=HEADSET,
        speed=SPEED,
        free_bytes=8 * 10**9,
        platform="linux",
        root=root,
        may_use=lambda path: True,
    )
    return having(whole, name="nano.en", cache_dir=str(tmp_path / "cache"))


def having(machine: Machine, section: str = "model", **values: object) -> Machine:
    """Return the machine with other settings in a section."""
    settings = machine.settings.having({f"{section}.{key}": value for key, value in values.items()})
    return dataclasses.replace(machine, settings=settings)


def put(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def put_npu(machine: Machine) -> None:
    card = machine.root / "sys/bus/pci/devices/0000:00:0b.0"
    for name, text in (("vendor", "0x8086"), ("device", "0x7d1d"), ("class", "0x120000")):
        put(card / name, text)


def expect(finding: Finding, verdict: Verdict, found: str, remedy: str = "") -> None:
    assert finding.verdict == verdict, finding
    assert found in finding.found
    assert remedy in finding.remedy
    # What is well asks for nothing.
    assert verdict != OK or not finding.remedy
    assert "\n" not in finding.found + finding.remedy


def test_all_is_well_on_a_good_machine(machine: Machine) -> None:
    free_port = having(machine, "server", port=0)
    findings = {name: run_check(check, free_port) for name, check in CHECKS.items() if name != "Hub cache"}
    assert findings.pop("Model").verdict == WARNING  # nano.en works, but not for people
    assert {name: finding for name, finding in findings.items() if finding.verdict != OK} == {}


def test_the_configuration_file_is_named(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expect(check_configuration(machine), OK, f"none: the defaults hold; {tmp_path / 'user' / 'config.yaml'}")
    put(tmp_path / "user" / "config.yaml")
    expect(check_configuration(machine), OK, str(tmp_path / "user" / "config.yaml"))
    monkeypatch.setenv("STREAMER_CONFIG", str(put(tmp_path / "b.yaml")))
    expect(check_configuration(machine), OK, str(tmp_path / "b.yaml"))
    named = dataclasses.replace(machine, config=put(tmp_path / "c.yaml"))
    expect(check_configuration(named), OK, str(tmp_path / "c.yaml"))
    refused = dataclasses.replace(machine, refusal=ConfigError("c.yaml:2: there is no setting 'server.prot'"))
    expect(check_configuration(refused), PROBLEM, "c.yaml:2: there is no setting", "correct it")


def test_an_openvino_that_is_broken_old_or_finds_nothing(machine: Machine) -> None:
    def with_openvino(inference: Inference) -> Machine:
        return dataclasses.replace(machine, inference=inference)

    expect(check_openvino(with_openvino(ALL)), OK, "2026.4.1, finds CPU, GPU, NPU")
    broken = with_openvino(Inference(error="no answer within 60 s"))
    expect(check_openvino(broken), PROBLEM, "no answer within 60 s", "pip install")
    expect(check_stages(broken), WARNING, "unknown", "OpenVINO above")
    expect(check_openvino(with_openvino(Inference("2026.0.0"))), PROBLEM, "finds no device", "pip install")
    old = with_openvino(Inference("2024.6.0", {"CPU": ""}))
    expect(check_openvino(old), WARNING, "expected 2026.0 or newer", "pip install")
    expect(check_openvino(with_openvino(Inference("custom", {"CPU": ""}))), OK, "custom")


def test_an_accelerator_that_openvino_finds_is_well(machine: Machine) -> None:
    whole = dataclasses.replace(machine, inference=ALL)
    expect(check_npu(whole), OK, "Intel(R) AI Boost, driver 1688")
    expect(check_gpu(whole), OK, "Arc")


def test_an_npu_whose_driver_has_no_compiler_is_of_no_use(machine: Machine) -> None:
    whole = dataclasses.replace(machine, inference=ALL)
    put(machine.root / "usr/lib64/libze_intel_npu.so.1")
    expect(check_npu(whole), WARNING, "driver 1688; its driver has no compiler", "install intel-driver-compiler-npu")
    expect(check_npu(having(whole, device="NPU")), PROBLEM, "its driver has no compiler")
    put(machine.root / "usr/lib64/libopenvino_intel_npu_compiler_loader.so")
    expect(check_npu(having(whole, device="NPU")), OK, "Intel(R) AI Boost, driver 1688")


def test_an_npu_without_its_module_is_a_problem_where_it_is_wanted(machine: Machine) -> None:
    expect(check_npu(machine), OK, "this machine has none")
    put_npu(machine)
    expect(check_npu(machine), WARNING, "intel_vpu is not loaded", "sudo modprobe intel_vpu")
    for wanted in ({"device": "NPU"}, {"encoder_device": "NPU.3720"}):
        expect(check_npu(having(machine, **wanted)), PROBLEM, "intel_vpu is not loaded", "sudo modprobe intel_vpu")
    expect(check_npu(having(machine, device="GPU")), WARNING, "intel_vpu is not loaded")


def test_a_gpu_without_a_driver(machine: Machine) -> None:
    card = machine.root / "sys/bus/pci/devices/0000:00:02.0"
    for name, text in (("vendor", "0x8086"), ("device", "0x46a6"), ("class", "0x038000")):
        put(card / name, text)
    put(machine.root / "dev/dri/renderD128")
    expect(check_gpu(machine), WARNING, "no OpenCL driver", "intel-opencl-icd")
    expect(check_gpu(having(machine, decoder_device="GPU.1")), PROBLEM, "no OpenCL driver", "intel-opencl-icd")


def test_other_systems_are_told_what_can_be_told(machine: Machine) -> None:
    windows = dataclasses.replace(machine, platform="win32", audio=Audio())
    expect(check_npu(windows), OK, "Core Ultra")
    expect(check_gpu(windows), OK, "Windows Update")
    expect(check_microphone(windows), PROBLEM, "none", "Privacy")
    mac = dataclasses.replace(machine, platform="darwin", audio=Audio())
    expect(check_npu(mac), OK, "OpenVINO finds none")
    expect(check_microphone(mac), PROBLEM, "none", "System Settings")


def test_the_devices_of_the_settings_must_be_there(machine: Machine) -> None:
    expect(check_stages(machine), OK, "encoder on CPU, cross_kv on CPU, decoder on CPU")
    expect(check_stages(having(machine, decoder_device="GPU")), PROBLEM, "device GPU for the decoder is not there")


def test_microphones_are_a_problem_only_where_one_is_to_be_heard(machine: Machine, tmp_path: Path) -> None:
    expect(check_microphone(machine), OK, "Headset")
    deaf = dataclasses.replace(machine, audio=Audio())
    expect(check_portaudio(deaf), OK, "no inputs")
    expect(check_microphone(deaf), PROBLEM, "none", "Linux knows of no sound card")
    expect(check_microphone(having(deaf, "input", source="none")), WARNING, "none", "--input FILE")
    expect(check_microphone(having(deaf, "input", fallback="a.wav")), WARNING, "none", "--input FILE")
    put(machine.root / "dev/snd/pcmC0D0p")
    expect(check_microphone(deaf), PROBLEM, "none", "Linux knows of no sound card")
    put(machine.root / "dev/snd/pcmC0D0c")
    expect(check_microphone(deaf), PROBLEM, "none", "sound server")
    locked = dataclasses.replace(deaf, may_use=lambda path: False)
    expect(check_microphone(locked), PROBLEM, "none", "sudo usermod -aG audio $USER")


def test_the_microphone_of_the_settings_must_be_there(machine: Machine) -> None:
    named = having(machine, "input", microphone="head")
    expect(check_microphone(named), OK, "'head' is there")
    gone = dataclasses.replace(named, audio=Audio(("Webcam",), "", "no microphone is named 'head'"))
    expect(check_microphone(gone), PROBLEM, "no microphone is named 'head'", "input.microphone")


def test_system_sound_is_a_problem_only_where_it_is_to_be_heard(machine: Machine) -> None:
    whole = dataclasses.replace(machine, system={"name": "system sound of 'Boxes'", "error": ""})
    expect(check_system_sound(whole), OK, "'Boxes'")
    deaf = dataclasses.replace(machine, system={"error": "it gives no audio: expected some"})
    expect(check_system_sound(deaf), WARNING, "gives no audio")
    for source in ("system", "mic+system"):
        expect(check_system_sound(having(deaf, "input", source=source)), PROBLEM, "gives no audio")
    mixed = having(dataclasses.replace(machine, audio=Audio()), "input", source="mic+system")
    expect(check_microphone(mixed), PROBLEM, "none", "Linux knows of no sound card")


def test_a_portaudio_that_is_missing_or_stuck(machine: Machine) -> None:
    stuck = dataclasses.replace(machine, audio=Audio(error="no answer within 15 s"))
    expect(check_portaudio(stuck), PROBLEM, "no answer within 15 s")
    expect(check_microphone(stuck), WARNING, "unknown", "PortAudio above")
    expect(check_portaudio(having(stuck, "input", source="-")), WARNING, "no answer within 15 s")


def test_auto_is_the_model_that_a_start_would_use(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    here: dict[str, Path] = {}
    monkeypatch.setattr(cache, "cached", here.get)
    automatic = having(machine, name="auto")
    expect(check_model(automatic), WARNING, "'base' is not here", "streamer models pull base")
    here["tiny.en"] = NANO
    expect(check_model(automatic), OK, "`streamer models verify tiny.en`")
    deaf = dataclasses.replace(automatic, speed={"error": "OpenVINO does not answer"})
    expect(check_model(deaf), WARNING, "OpenVINO does not answer", "OpenVINO above")


def test_a_model_that_is_missing_empty_or_half_fetched(machine: Machine, tmp_path: Path) -> None:
    expect(check_model(machine), WARNING, "nano.en", "synthetic voices, not people")
    expect(check_model(machine), WARNING, "nano.en", "`streamer models pull base`")
    expect(check_model(having(machine, name="./no/such/model")), PROBLEM, "there is no model './no/such/model'", "list")
    expect(
        check_model(having(machine, name="nobody/such-a-whisper")), WARNING, "is not here", "pull nobody/such-a-whisper"
    )
    folder = tmp_path / "model"
    put(folder / "config.json", "{}")
    expect(check_model(having(machine, name=str(folder))), PROBLEM, "holds no weights", "fetch")
    put(folder / "model.safetensors", "version https://git-lfs.github.com/spec/v1\n")
    expect(check_model(having(machine, name=str(folder))), PROBLEM, "model.safetensors has 43 bytes", "git lfs pull")
    (folder / "model.safetensors").write_bytes(bytes(2_000_000))
    expect(check_model(having(machine, name=str(folder))), OK, "2 MB; ")
    one_file = tmp_path / "ggml-tiny.bin"
    one_file.write_bytes(bytes(3_000_000))
    expect(check_model(having(machine, name=str(one_file))), OK, "3 MB; ")


def test_the_sizes_that_fit_and_keep_pace_are_told(machine: Machine) -> None:
    def delays(machine: Machine) -> dict[str, float]:
        found = check_sizes(machine)
        expect(found, OK, "estimated for the CPU")
        return {name: float(s) for name, s in re.findall(r"(\S+): ([\d.]+) s behind", found.found)}

    whole, short = delays(having(machine, windows_s=(30,))), delays(machine)
    assert list(whole) == ["tiny.en", "base.en"]
    assert list(short) == ["tiny.en", "base.en", "small.en"]
    assert whole["tiny.en"] < whole["base.en"]
    assert all(short[name] < whole[name] for name in whole)
    assert "turbo is too slow" in check_sizes(machine).found
    assert "busy" not in check_sizes(machine).found
    busy = dataclasses.replace(machine, busy_percent=87.3)
    expect(check_sizes(busy), OK, "; measured while the machine was busy: 87 %; ")
    little = dataclasses.replace(machine, free_bytes=500_000_000)
    expect(check_sizes(little), OK, "large-v3 does not fit (about")
    too_large = having(little, name="turbo")
    expect(check_sizes(too_large), WARNING, "turbo does not fit (about", "choose a smaller model")
    unknown = dataclasses.replace(machine, speed={"error": "no answer within 60 s"})
    expect(check_sizes(unknown), WARNING, "no answer within 60 s", "OpenVINO above")


def test_the_processor_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "_MEASURED", fit._size(64, (1, 1), 64))
    assert min(dataclasses.astuple(fit.Speed(**answer_speed()))) > 0


@contextmanager
def listening(server_name: str, body: bytes) -> Iterator[int]:
    """Answer every request on a port of its own with a body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def version_string(self) -> str:
            return server_name

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("name", "body", "verdict", "words"),
    [
        ("streamer", b'{"status":"ok"}', OK, "a streamer daemon runs on 127.0.0.1"),
        ("streamer", b'{"status":"starting"}', OK, "its status is starting"),
        ("nginx", b'{"status":"ok"}', PROBLEM, "taken by another program"),
        ("streamer", b"[1]", PROBLEM, "taken by another program"),
        ("streamer", b"\xff", PROBLEM, "taken by another program"),
        ("streamer", b"[" * 60_000, PROBLEM, "taken by another program"),
        ("streamer", b'{"status":"\\u001b[31mok"}', OK, "its status is [31mok;"),
    ],
)
def test_a_taken_port_is_told_by_whom(machine: Machine, name: str, body: bytes, verdict: Verdict, words: str) -> None:
    with listening(name, body) as port:
        expect(check_port(having(machine, "server", port=port)), verdict, words)


@pytest.mark.parametrize("tls", ["off", "self-signed"])
async def test_the_real_server_is_known_as_a_daemon(
    machine: Machine, tls: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platformdirs.user_data_path", lambda *_, **__: tmp_path)
    async with serving(tls=tls) as running:
        found = await asyncio.to_thread(check_port, having(machine, "server", port=running.port))
    expect(found, OK, "a streamer daemon runs on 127.0.0.1")


def test_a_port_whose_holder_says_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "HEALTH_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        expect(check_port(having(machine, "server", port=port)), PROBLEM, "taken by another program", "--port N")
        every = having(machine, "server", host="0.0.0.0", token="a secret of 16 or more", port=port)
        expect(check_port(every), PROBLEM, "taken by another program", "--port N")
    expect(check_port(having(machine, "server", port=port)), OK, f"127.0.0.1 port {port} is free")


def test_a_certificate_that_cannot_be_loaded(machine: Machine) -> None:
    expect(check_port(having(machine, "server", tls_certificate="/absent.pem")), PROBLEM, "/absent.pem cannot be read")


def test_an_address_that_cannot_be_listened_on(machine: Machine) -> None:
    expect(check_port(having(machine, "server", port=0)), OK, "any free port")
    expect(check_port(having(machine, "server", host="0.0.0.0")), PROBLEM, "server.token is empty")
    # Of the block for documentation (RFC 5737): no machine has it.
    elsewhere = having(machine, "server", host="192.0.2.1", token="a secret of 16 or more")
    expect(check_port(elsewhere), PROBLEM, "cannot listen on 192.0.2.1 port 8765", "an address of this machine")
    nowhere = having(machine, "server", host="a" * 70, token="a secret of 16 or more")
    expect(check_port(nowhere), PROBLEM, "cannot be resolved", "127.0.0.1")


def test_the_cache_directory_is_measured(machine: Machine, tmp_path: Path) -> None:
    expect(check_cache(machine), OK, f"{tmp_path / 'cache'}, not made yet, 1000.0 GB free")
    put(tmp_path / "cache" / "NPU-0123456789abcdef" / "a.blob").write_bytes(bytes(2_000_000))
    expect(check_cache(machine), OK, f"{tmp_path / 'cache'}, 2 MB, 1000.0 GB free")
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_file()]


def test_a_cache_directory_that_cannot_be_used(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "file")
    expect(check_cache(having(machine, cache_dir=str(tmp_path / "file"))), PROBLEM, "is a file", "model.cache_dir")
    below = having(machine, cache_dir=str(tmp_path / "file" / "below"))
    expect(check_cache(below), PROBLEM, "cannot be made", "model.cache_dir")
    nobody = having(machine, cache_dir="~nobody-of-this-name/x")
    expect(check_cache(nobody), PROBLEM, "model.cache_dir", "name a directory")
    (tmp_path / "cache").mkdir()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    expect(check_cache(machine), PROBLEM, "cannot be written to (No space left on device)", "model.cache_dir")
    # Nobody asked for this one: it is done without.
    monkeypatch.setattr("streamer.whisper.cache.cache_base", lambda setting: tmp_path / "cache")
    expect(check_cache(having(machine, cache_dir="")), WARNING, "cannot be written to")


def test_a_directory_of_somebody_else(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    expect(check_cache(machine), PROBLEM, "this user may not write to", "model.cache_dir")


def test_little_space_is_a_warning(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**12, 0, 10**9))
    expect(check_cache(machine), WARNING, "1.0 GB free", "make room")


def test_the_directory_of_the_hub(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    expect(check_hub(machine), OK, f"{tmp_path / 'hub'}, not made yet")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    expect(check_hub(machine), OK, "offline, since HF_HUB_OFFLINE is set")
    put(tmp_path / "hub")
    expect(check_hub(machine), WARNING, "cannot be written to", "HF_HOME")


def test_a_check_that_hangs_or_fails_does_not_stop_the_others(machine: Machine) -> None:
    let_go = threading.Event()

    def hang(_: Machine) -> Finding:
        let_go.wait()
        return Finding(OK, "")

    def fail(_: Machine) -> Finding:
        raise LookupError("a bug")

    expect(run_check(hang, machine, timeout_s=0.05), PROBLEM, "no answer within 0.05 s", "network drive")
    let_go.set()
    expect(run_check(fail, machine), PROBLEM, "LookupError: a bug", "report it")


@pytest.mark.parametrize("width", [80, 200])
def test_the_table_shows_all_and_counts(width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    findings = {
        "One": Finding(OK, "[bold]fine"),
        "Two": Finding(WARNING, "so so " * 30, "mend [it]"),
        "Three": Finding(PROBLEM, "bad", "mend it"),
    }
    assert show(findings, console) == 1
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= min(width, TABLE_WIDTH)
    for word in ("[bold]fine", "to do: mend [it]", "ok", "warning", "problem"):
        assert word in text
    assert text.endswith("1 problem, 1 warning\n")


def test_without_problems_the_exit_code_is_0() -> None:
    console = Console(file=io.StringIO(), width=80)
    assert show({"One": Finding(OK, "fine"), "Two": Finding(WARNING, "so so", "mend it")}, console) == 0
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().endswith("no problems, 1 warning\n")


def test_diagnose_asks_and_looks_at_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    looked: list[Machine] = []

    answers = {"answer_inference": dataclasses.asdict(ALL), "answer_audio": dataclasses.asdict(HEADSET)}

    def ask(function: Callable[..., object], *args: object, timeout_s: float) -> object:
        asked.append((function.__name__, *args))
        return answers.get(function.__name__, SPEED)

    def check(machine: Machine) -> Finding:
        looked.append(machine)
        return Finding(OK, "fine")

    monkeypatch.setattr(doctor, "ask_apart", ask)
    monkeypatch.setattr("psutil.cpu_percent", lambda interval: 40.0)
    monkeypatch.setattr(doctor, "CHECKS", dict.fromkeys(CHECKS, check))
    console = Console(file=io.StringIO(), width=80)
    assert diagnose(Invocation(Path("nowhere.yaml"), {}), console) == 0
    assert asked == [("answer_inference",), ("answer_speed",), ("answer_audio", ""), ("answer_system",)]
    assert len(looked) == len(CHECKS)
    assert looked[0].busy_percent == 40.0
    assert (looked[0].inference, looked[0].audio, looked[0].config) == (ALL, HEADSET, Path("nowhere.yaml"))
    assert "nowhere.yaml does not exist" in str(looked[0].refusal)
    assert isinstance(console.file, io.StringIO)
    assert all(name in console.file.getvalue() for name in CHECKS)
