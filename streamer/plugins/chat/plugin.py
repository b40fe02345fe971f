"""What `chat` adds: a command."""

from streamer.commands.table import CLIENT, DAEMON, Subcommand, argument

CHAT = Subcommand(
    "chat",
    "talk to a chatbot through a running daemon",
    "streamer.plugins.chat.command:chat",
    ("chat.url", "chat.model", "chat.system", argument("--daemon", dest="url", **DAEMON), *CLIENT),
    example="--to http://127.0.0.1:11434/v1 --model llama3",
    more="Sends each final text to an OpenAI-compatible chat endpoint and prints the replies.",
    endless=True,
    ends_on_sigterm=True,
)
