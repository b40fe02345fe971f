"""What a setting is: how one is declared in a section of `table`, and all that is known of it."""

import types
import typing
from typing import Annotated, Any, Literal, TypeVar

import msgspec

ENVIRONMENT_PREFIX = "STREAMER_"

OURS = "streamer"

T = TypeVar("T", bound=msgspec.Struct)


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A setting: the last four fields are known from its section, the others are declared.

    It has as many as there are uses of a setting: messages, flags, config.yaml, the schema, documents, clients.
    """

    default: Any

    # One phrase: the comment in config.yaml, the help of the flag, and the description in the documents and the schema.
    help: str
    unit: str = ""  # such as `s`, `tokens`, `logits`
    within: tuple[float, float] | None = None  # range of numbers, both ends included

    # What text, or each item of a list, has to match, and an example of that; `choices` match, too.
    pattern: str = ""
    example: str = ""
    choices: tuple[str, ...] = ()  # of a `Literal` known from the type

    flag: str = ""  # if it is not made from the name
    metavar: str = ""  # what the help calls the value; empty: a letter for its type
    secret: bool = False  # whether messages leave out the value
    repeated: bool = False  # whether the flag is given once for each item of the list, not once with commas

    # Name of the option with which a client of `/v1/stream` chooses it for its session; empty: it cannot.
    client: str = ""

    # Of plug-ins' settings: commands of the core that have its flag, too.
    commands: tuple[str, ...] = ()

    # Of options of decoding and output: title of the group that begins with this option; program that has the option
    # with this name, meaning and default; whether live captions use it, too; for the schema: more on
    # what it does.
    group: str = ""
    source: str = OURS
    live: bool = False
    more: str = ""

    # Dotted, such as `server.port`; the type of its values other than None, as msgspec checks it, and its plain type;
    # whether None, `none` in the file, in the environment and in a flag, is a value.
    name: str = ""
    type: Any = None
    kind: Any = None
    may_be_none: bool = False

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
        if self.choices:
            named = all(choice in self.help for choice in self.choices)
            found = "" if named else ", ".join(filter(None, (*self.choices, self.example)))
        elif self.within is not None:
            found = f"{' to '.join(map(short, self.within))}{self.unit and f' {self.unit}'}"
        else:
            return self.unit
        return (
            f"{found}, or none" if self.may_be_none and self.default is not None and "none" not in self.help else found
        )


def short(number: float) -> str:
    """Return a number as people write it: without a point if it is whole."""
    return str(int(number)) if number == int(number) else str(number)


def setting(default: Any, help: str, **known: Any) -> Any:  # noqa: ANN401 - as dataclasses.field
    """Declare a setting: a field of a section. See `Setting` for what may be known of it."""
    return Setting(default=default, help=help, **known)


def section(cls: type[T]) -> type[T]:
    """Return a struct whose fields are declared with `setting` as one with their defaults, and ranges in its types."""
    settings = {field.name: _with_type(field.default, field.type) for field in msgspec.structs.fields(cls)}
    fields = [
        (key, known.type | None if known.may_be_none else known.type, known.default) for key, known in settings.items()
    ]
    methods = {name: value for name, value in vars(cls).items() if isinstance(value, types.FunctionType)}
    namespace = {**methods, "__doc__": cls.__doc__, "settings": settings}
    made = msgspec.defstruct(
        cls.__name__, fields, module=cls.__module__, namespace=namespace, frozen=True, kw_only=True
    )
    return typing.cast(type[T], made)


def _with_type(declared: Setting, hint: Any) -> Setting:  # noqa: ANN401 - any type
    """Return a setting with what the type of its field says."""
    parts = typing.get_args(hint)
    may_be_none = types.NoneType in parts
    type = kind = next(part for part in parts if part is not types.NoneType) if may_be_none else hint
    choices = declared.choices
    if typing.get_origin(kind) is Literal:
        choices, kind = parts, str
    elif declared.pattern or declared.within is not None:
        limits = _limits(declared)
        is_list = typing.get_origin(kind) is tuple
        type = tuple[Annotated[parts[0], limits], ...] if is_list else Annotated[kind, limits]  # type: ignore[valid-type]
    return msgspec.structs.replace(declared, choices=choices, type=type, kind=kind, may_be_none=may_be_none)


def _limits(declared: Setting) -> msgspec.Meta:
    """Return the limits of a value, or of each item of a list."""
    if declared.pattern:
        # Python's `$` matches before a newline at the end, too; that of JSON Schema does not.
        return msgspec.Meta(pattern=f"^(?:{declared.pattern})$(?!\\n)", examples=[*declared.choices, declared.example])
    assert declared.within is not None
    low, high = declared.within
    return msgspec.Meta(ge=low, le=high)
