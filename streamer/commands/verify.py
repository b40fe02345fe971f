"""`streamer models verify`: checks a model on the devices it would run on and prints what was found."""

from rich.console import Console
from rich.text import Text

from streamer.commands.terminal import make_table, say
from streamer.settings.table import Settings
from streamer.setup.auto import choose_model
from streamer.setup.loading import device_settings
from streamer.setup.progress import show_progress
from streamer.whisper.check import Check
from streamer.whisper.model import LoadOptions, verify_model


def verify(settings: Settings, console: Console) -> int:
    """Check a model and print one row a check. Returns 1 if one did not pass.

    Raises StreamerError if the model cannot be found, read or compiled; earlier checks are printed.
    """
    model = choose_model(settings, live=True).model
    checks: list[Check] = []
    try:
        with show_progress(model.name) as progress:
            for check in verify_model(
                model.name,
                LoadOptions(
                    device_settings(model),
                    tokenizer=model.tokenizer,
                    lora=model.lora,
                    cache_dir=model.cache_dir,
                    weights=model.weights,
                    windows_s=model.windows_s or None,
                    adapter=model.adapter,
                ),
                on_download=progress.fetched,
                on_compiled=progress.compiled,
            ):
                checks.append(check)
    finally:
        if checks:
            table = make_table(f"Model {model.name}", "Check", "Found", "Expected", "Verdict")
            for check in checks:
                verdict = Text("ok", "green") if check.passed else Text("WRONG", "bold red")
                table.add_row(Text(check.name), Text(check.found), Text(check.expected), verdict)
            console.print(table)
    failed = [check for check in checks if not check.passed]
    for check in failed:
        say(console, f"{check.name}: {check.error()}", "red")
    return 1 if failed else 0
