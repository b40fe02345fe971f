"""The commands by their names: a function each, whose signature is its command line (see `signature`).

Their modules import what takes time, such as numpy or OpenVINO, in their functions: all of them are imported for each
command line, and `--help` and a slip in a flag should answer at once.
"""

import functools
from collections.abc import Mapping

from streamer import entry_points
from streamer.commands import (
    bench,
    config,
    devices,
    docs,
    doctor,
    history,
    listen,
    models,
    redo,
    run,
    speakers,
    token,
    transcribe,
)
from streamer.commands.signature import Command, texts_of

# In the order of the help.
COMMANDS: Mapping[str, Command] = {
    "run": run.run,
    "transcribe": transcribe.transcribe,
    "listen": listen.listen,
    "config show": config.show,
    "config init": config.init,
    "config schema": config.schema,
    "token new": token.new,
    "token list": token.list_tokens,
    "token revoke": token.revoke,
    "models list": models.list_models,
    "models pull": models.pull,
    "models verify": models.verify,
    "history list": history.list_sessions,
    "history show": history.show,
    "history export": history.export,
    "history search": history.search,
    "history redo": redo.redo,
    "history delete": history.delete,
    "speakers enrol": speakers.enrol,
    "speakers list": speakers.list_speakers,
    "speakers forget": speakers.forget,
    "devices": devices.devices,
    "doctor": doctor.doctor,
    "bench": bench.bench,
    "docs": docs.docs,
    "completion": docs.completion,
}

# What each group of commands does.
GROUPS = {
    "config": "show, write and describe the settings",
    "token": "make, list and revoke the tokens of clients",
    "models": "list, fetch and verify models",
    "history": "list, show, export, search, redo and delete what a daemon with --history has kept",
    "speakers": "enrol, list and forget people whose voices --speakers recognizes",
}


@functools.cache
def commands() -> Mapping[str, Command]:
    """Return all commands, those of plug-ins last, in the order of the help."""
    ours = {name.partition(" ")[0] for name in COMMANDS}
    added = entry_points.load_all("streamer.commands", callable)
    return {**COMMANDS, **{name: command for name, command in added.items() if name not in ours and " " not in name}}


def summaries() -> dict[str, str]:
    """Return the commands and groups of commands with what each does, in the order of the help."""
    known = {**{name: texts_of(command)[0] for name, command in commands().items()}, **GROUPS}
    return {name: known[name] for name in dict.fromkeys(name.partition(" ")[0] for name in commands())}
