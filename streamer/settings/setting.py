"""What a setting is: a field of a section's struct, with what is known of it in its annotation."""

import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

ENVIRONMENT_PREFIX = "STREAMER_"

OURS = "streamer"

_ANY = msgspec.Meta()


class Help(msgspec.Struct, frozen=True):
    """What a setting is for, and how its flag looks: in the annotation of each setting."""

    # One phrase: the comment in config.yaml, the help of the flag, and the description in the documents and the schema.
    help: str

    flag: str = ""  # if it is not made from the name
    metavar: str = ""  # what the help calls the value; empty: a letter for its type
    secret: bool = False  # whether messages leave out the value
    repeated: bool = False  # whether the flag is given once for each item of the list, not once with commas

    # Of plug-ins' settings: commands of the core that have its flag, too.
    commands: tuple[str, ...] = ()

    # Of options of decoding and output: title of the group that begins with this option; program that has the option
    # with this name, meaning and default; whether live captions use it, too.
    group: str = ""
    source: str = OURS
    live: bool = False


class More(msgspec.Struct, frozen=True):
    """What else a setting does, for the schema."""

    text: str


def within(low: float, high: float, unit: str = "") -> msgspec.Meta:
    """Limit a number; both ends are included. Unit: such as `s`, `tokens`, `logits`."""
    return msgspec.Meta(ge=low, le=high, extra={"unit": unit})


def like(pattern: str, example: str, *choices: str) -> msgspec.Meta:
    """Limit text to what a pattern matches; `choices` and `example` match it, and are named in messages."""
    # Python's `$` matches before a newline at the end, too; that of JSON Schema does not.
    return msgspec.Meta(pattern=f"^(?:{pattern})$(?!\\n)", examples=[*choices, example])


class Setting(Help, frozen=True, kw_only=True):
    """All that is known of a setting."""

    name: str  # dotted, such as `server.port`
    struct: type[msgspec.Struct]  # whose field it is
    default: Any
    more: str

    # The type of its values other than None, as msgspec checks it; whether None, `none` in the file, in the environment
    # and in a flag, is a value.
    type: Any
    may_be_none: bool

    # Its plain type: bool, int, float, str or a tuple of int or str; the words that it may be; the limits of a value or
    # of each item, see `within` and `like`.
    kind: Any
    choices: tuple[str, ...]
    meta: msgspec.Meta

    @property
    def key(self) -> str:
        """Its name within its section."""
        return self.name.partition(".")[2]

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return ENVIRONMENT_PREFIX + self.name.replace(".", "_").upper()

    @property
    def option(self) -> str:
        """The flag that sets it, in commands that have it."""
        return self.flag or "--" + self.key.replace("_", "-")

    @property
    def within(self) -> tuple[float, float] | None:
        """The range of a number, both ends included."""
        return None if self.meta.ge is None or self.meta.le is None else (self.meta.ge, self.meta.le)

    @property
    def example(self) -> str:
        """Text that matches its pattern, if it has one, and is no choice."""
        return self.meta.examples[-1] if self.meta.examples else ""

    @property
    def default_text(self) -> str:
        """The default in words, as documents and help show it; `empty` if it is."""
        if isinstance(self.default, bool):
            return "on" if self.default else "off"
        if self.default is None:
            return "none"
        return str(self.default) if self.default not in ("", ()) else "empty"

    @property
    def limits(self) -> str:
        """What it may be, in a few words; empty if anything of its type may, or the help names all choices."""
        unit = (self.meta.extra or {}).get("unit", "")
        if self.choices:
            named = all(choice in self.help for choice in self.choices)
            return "" if named else ", ".join(filter(None, (*self.choices, self.example)))
        return f"{' to '.join(map(short, self.within))} {unit}".rstrip() if self.within is not None else unit


def short(number: float) -> str:
    """Return a number as people write it: without a point if it is whole."""
    return str(int(number)) if number == int(number) else str(number)


def settings_of(section: str, struct: type[msgspec.Struct]) -> Iterator[Setting]:
    """Yield the settings of a section that a struct declares, in their order."""
    for field in msgspec.structs.fields(struct):
        type, *notes = typing.get_args(field.type)
        may_be_none = types.NoneType in typing.get_args(type)
        of_values = typing.get_args(type)[0] if may_be_none else field.type
        kind, choices, meta = values_of(of_values)
        yield Setting(
            *msgspec.structs.astuple(next(note for note in notes if isinstance(note, Help))),
            name=f"{section}.{field.name}",
            struct=struct,
            default=field.default,
            more="".join(note.text for note in notes if isinstance(note, More)),
            type=of_values,
            may_be_none=may_be_none,
            kind=kind,
            choices=choices,
            meta=meta,
        )


def values_of(type: Any) -> tuple[Any, tuple[str, ...], msgspec.Meta]:  # noqa: ANN401 - any type
    """Return what values of a type may be: its plain type, choices, and the limits of each value or item."""
    plain, *notes = typing.get_args(type) if typing.get_origin(type) is Annotated else (type,)
    if typing.get_origin(plain) is Literal:
        return str, typing.get_args(plain), _ANY
    if typing.get_origin(plain) is tuple:
        item, choices, meta = values_of(typing.get_args(plain)[0])
        return tuple[item, ...], choices, meta  # type: ignore[valid-type]
    meta = next((note for note in notes if isinstance(note, msgspec.Meta)), _ANY)
    return plain, tuple(meta.examples or ())[:-1], meta
