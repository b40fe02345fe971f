"""Sentences that are read from a file, or made up."""

import random
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from tools.benchmarks.synthetic import words

T = TypeVar("T")

MAX_WORDS = 25  # in a sentence that is made up

_PLAIN = str.maketrans(
    {"‘": "'", "’": "'", "“": '"', "”": '"', "–": " -- ", "—": " -- ", "…": "...", "[": "(", "]": ")"}
)
_UNWRITTEN = re.compile(r"""[^A-Za-z0-9'",.;:?!() -]""")
_DASH = re.compile(r"([,;:.?!]?)\s*(?:--+|\s-\s)\s*")
# Abbreviations that the synthesisers spell or mispronounce.
_ABBREVIATIONS = {
    "Bart.": "Baronet",
    "Capt.": "Captain",
    "Co.": "Company",
    "Col.": "Colonel",
    "Drs.": "Doctors",
    "Esq.": "Esquire",
    "Gen.": "General",
    "Inc.": "Incorporated",
    "Jr.": "Junior",
    "Lt.": "Lieutenant",
    "Ltd.": "Limited",
    "Maj.": "Major",
    "Rev.": "Reverend",
    "Sgt.": "Sergeant",
    "e.g.": "for example",
    "i.e.": "that is",
    "viz.": "namely",
}
_ABBREVIATION = re.compile(r"(?<![\w.])(" + "|".join(re.escape(name) for name in _ABBREVIATIONS) + r")(?!\w)(\W*$)?")


def read(path: Path) -> list[str]:
    """The sentences of a text file in UTF-8, one a line, in the letters and marks that normalise() leaves."""
    lines = (normalise(line) for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def normalise(text: str) -> str:
    """Write `text` in unaccented letters, digits, ' " , . ; : ? ! ( ) - and single spaces; it may become empty.

    Curly quotes become straight, square brackets round, dashes between words commas. Abbreviations that would be
    mispronounced are written out. Every piece between spaces has a letter or a digit.
    """
    text = "".join(c for c in unicodedata.normalize("NFKD", text.translate(_PLAIN)) if not unicodedata.combining(c))
    text = _UNWRITTEN.sub(" ", text)
    text = _DASH.sub(lambda dash: f"{dash[1] or ','} ", text)
    text = re.sub(r"\.{2,}", ".", text)
    text = re.sub(r"(?<=[a-z]):(?=[a-z])", " ", text)  # "four:fifty"
    text = _ABBREVIATION.sub(_write_out, text)
    tokens = [token for token in text.split() if any(c.isalnum() for c in token)]
    return re.sub(r"^[,;:.?! -]+", "", " ".join(tokens))


def _write_out(found: re.Match[str]) -> str:
    stop = "" if found[2] is None else found[2] if "." in found[2] else f".{found[2]}"
    return _ABBREVIATIONS[found[1]] + stop


def made(rng: random.Random) -> str:
    """A made-up sentence of everyday speech, of 2 to 25 words; numbers are words. The same for the same `rng`."""
    while True:
        sentence = _finished(_Maker(rng).sentence())
        if 2 <= len(sentence.split()) <= MAX_WORDS:
            return sentence


def _capitalised(text: str) -> str:
    for position, character in enumerate(text):
        if character.isalpha():
            return text[:position] + character.upper() + text[position + 1 :]
    return text


# A vowel letter that is not spoken as a vowel, or the other way round.
_AS_CONSONANT = re.compile(r"(?:one|once|uni|us[eu]|eu|ur[ai]|united)", re.IGNORECASE)
_AS_VOWEL = re.compile(r"(?:hour|honest|honor)", re.IGNORECASE)


def _article(found: re.Match[str]) -> str:
    word = found[1]
    vowel = _AS_VOWEL.match(word) or (word[0].lower() in "aeiou" and not _AS_CONSONANT.match(word))
    return f"an {word}" if vowel else f"a {word}"


def _finished(text: str) -> str:
    """With articles agreed, capitals at the beginning of sentences, and a mark at the end."""
    text = re.sub(r" +([,.;:?!])", r"\1", text)
    text = re.sub(r"\ba ([A-Za-z][\w'-]*)", _article, " ".join(text.split()))
    text = re.sub(r"(?<!\.m)([.?!]\"?) ([a-z])", lambda found: f"{found[1]} {found[2].upper()}", text)
    text = re.sub(r"\.{2,}", ".", re.sub(r"(?<!\.m)\.([,?!])", r"\1", text))
    return _capitalised(text if text[-1] in '.?!"' else f"{text}.")


# Numbers in words.

_ONES = words.entries("""
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen
""")
_TENS = words.entries("zero ten twenty thirty forty fifty sixty seventy eighty ninety")
_IRREGULAR_ORDINALS = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
    "twelve": "twelfth",
}  # fmt: skip


def cardinal(number: int) -> str:
    """`number`, 0 to 999,999,999, in words: "one hundred and five"."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        return _TENS[number // 10] + (f"-{_ONES[number % 10]}" if number % 10 else "")
    if number < 1000:
        rest = number % 100
        return f"{_ONES[number // 100]} hundred" + (f" and {cardinal(rest)}" if rest else "")
    unit, name = (1_000_000, "million") if number >= 1_000_000 else (1000, "thousand")
    rest = number % unit
    joint = " and " if rest < 100 else ", " if unit == 1_000_000 else " "
    return f"{cardinal(number // unit)} {name}" + (f"{joint}{cardinal(rest)}" if rest else "")


def ordinal(number: int) -> str:
    """`number` as an ordinal in words: "twenty-first"."""
    head, joint, last = re.fullmatch(r"(.*?)([ -]?)(\w+)", cardinal(number)).groups()  # type: ignore[union-attr]
    if last in _IRREGULAR_ORDINALS:
        last = _IRREGULAR_ORDINALS[last]
    else:
        last = f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th"
    return head + joint + last


def year(number: int) -> str:
    """A year, 1100 to 2099, as it is spoken: "nineteen sixty-three", "nineteen oh five", "two thousand and seven"."""
    century, rest = divmod(number, 100)
    if century == 20 and rest < 10:
        return cardinal(number)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {f'oh {_ONES[rest]}' if rest < 10 else cardinal(rest)}"


# Forms of words.

_SHORT = re.compile(r"[^aeiou]*[aeiou][^aeiouwxy]")


def inflect(verb: str, form: str) -> str:
    """A form of `verb`: base, s, ing, past or en (the participle). Of "pick up" it is "pick" that changes."""
    base, space, rest = verb.partition(" ")
    return _inflected(base, form) + space + rest


@cache
def _inflected(base: str, form: str) -> str:
    doubled = base in words.DOUBLED or _SHORT.fullmatch(base) is not None
    stem = base + base[-1] if doubled else base
    if form == "base":
        return base
    if form == "s":
        return {"have": "has", "be": "is"}.get(base) or _with_s(base)
    if form == "ing":
        if base.endswith("ie"):
            return f"{base[:-2]}ying"
        silent = base.endswith("e") and not base.endswith(("ee", "oe", "ye"))
        return f"{base[:-1] if silent else stem}ing"
    if base in words.IRREGULAR:
        past, participle = words.IRREGULAR[base]
        return past if form == "past" else participle
    if base.endswith("e"):
        return f"{base}d"
    return f"{base[:-1]}ied" if base[-1] == "y" and base[-2] not in "aeiou" else f"{stem}ed"


def _with_s(word: str) -> str:
    if word.endswith(("s", "x", "z", "ch", "sh")) or word in ("go", "do", "echo", "potato", "tomato", "undergo"):
        return f"{word}es"
    return f"{word[:-1]}ies" if word[-1] == "y" and word[-2] not in "aeiou" else f"{word}s"


def plural(noun: str) -> str:
    """The plural of `noun`; a noun that is plural stays as it is."""
    return noun if _is_plural(noun) else words.IRREGULAR_PLURALS.get(noun) or _with_s(noun)


def _is_plural(noun: str) -> bool:
    """Whether a noun of the lists is listed in the plural, such as "lights"."""
    return noun.endswith("s") and noun[-2] not in "sui" and noun not in words.SINGULAR_IN_S


_NOUNS = {
    "abstract": words.ABSTRACTS,
    "animal": words.ANIMALS,
    "body": words.BODY,
    "device": words.DEVICES,
    "document": words.DOCUMENTS,
    "group": words.GROUPS,
    "person": words.PEOPLE,
    "relative": words.RELATIVES,
    "room": words.ROOMS,
    "software": words.SOFTWARE,
    "thing": words.THINGS,
    "venue": words.VENUES,
}


@cache
def _countable(kind: str) -> tuple[str, ...]:
    return tuple(noun for noun in _NOUNS[kind] if noun not in words.UNCOUNTED)


@cache
def _singular(kind: str) -> tuple[str, ...]:
    return tuple(noun for noun in _NOUNS[kind] if not _is_plural(noun))


_ADJECTIVES = {"abstract": words.GOOD_BAD, "person": words.GOOD_BAD + words.FEELINGS, "group": words.GOOD_BAD}
_POSSESSIVES = ("my", "your", "his", "her", "our", "their")
_PRONOUNS = {"I": "me", "you": "you", "he": "him", "she": "her", "we": "us", "they": "them"}
_REFLEXIVES = {
    "I": "myself",
    "you": "yourself",
    "he": "himself",
    "she": "herself",
    "we": "ourselves",
    "they": "themselves",
}
_INDEFINITE = ("everyone", "everybody", "someone", "somebody", "nobody", "no one", "anyone")

# Auxiliaries by number: "I", "one" or "many".
_FINITE = {
    "am": {"I": "am", "one": "is", "many": "are"},
    "was": {"I": "was", "one": "was", "many": "were"},
    "have": {"I": "have", "one": "has", "many": "have"},
    "do": {"I": "do", "one": "does", "many": "do"},
}
_NEGATED = {"am": "am not", "will": "won't", "can": "can't", "may": "may not", "might": "might not"}
_SHORTENED = {
    "am": "'m",
    "is": "'s",
    "are": "'re",
    "have": "'ve",
    "has": "'s",
    "had": "'d",
    "will": "'ll",
    "would": "'d",
}
_MODALS = ("can", "could", "should", "would", "must", "might", "may", "will")
# Tenses with their weights: name, auxiliary, form of the verb.
_TENSES = (
    (20, "present", "do", "base"),
    (28, "past", "did", "base"),
    (12, "present", "am", "ing"),
    (7, "past", "was", "ing"),
    (9, "perfect", "have", "en"),
    (3, "past", "had", "en"),
    (10, "future", "will", "base"),
    (7, "future", "am", "going to"),
    (11, "any", "modal", "base"),
    (2, "past", "did", "used to"),
)


@dataclass(frozen=True)
class _Clause:
    """A subject, an auxiliary (whether it is spoken or not) and the rest, to be said, denied or asked."""

    subject: str
    pronoun: str  # that stands for the subject: I, you, he, she, it, we, they
    auxiliary: str
    finite: str  # the verb where a plain statement does without the auxiliary, or empty
    rest: str  # after the auxiliary, the verb with it
    complement: str  # after the finite verb
    negative: bool

    @property
    def denied(self) -> str:
        return _NEGATED.get(self.auxiliary, f"{self.auxiliary}n't")

    def statement(self, shortened: bool) -> str:
        if self.negative:
            return f"{self.subject} {self.denied} {self.rest}"
        if self.finite:
            return f"{self.subject} {self.finite} {self.complement}"
        if shortened and self.subject in (*_PRONOUNS, "it") and self.auxiliary in _SHORTENED:
            return f"{self.subject}{_SHORTENED[self.auxiliary]} {self.rest}"
        return f"{self.subject} {self.auxiliary} {self.rest}"

    def question(self) -> str:
        if self.negative and self.denied.endswith("n't"):
            return f"{self.denied} {self.subject} {self.rest}"
        return f"{self.auxiliary} {self.subject} {self.rest}"

    def tag(self) -> str:
        if self.negative:
            return f"{self.auxiliary} {self.pronoun}"
        return f"{'am I not' if self.auxiliary == 'am' else f'{self.denied} {self.pronoun}'}"


class _Maker:
    """Makes one sentence: chooses patterns, and fills what they leave open."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._depth = 0  # of clauses and verb phrases within one another

    def sentence(self) -> str:
        kinds: tuple[tuple[int, Callable[[], str]], ...] = (
            (24, self.clause),
            (12, self.question),
            (6, self._tagged),
            (8, self._joined),
            (4, lambda: self.fill("{vp}")),
            (8, lambda: self._pattern("talk")),
            (9, lambda: self._pattern("computer")),
            (7, lambda: self._pattern("meeting")),
            (8, lambda: self._pattern("caption")),
            (3, lambda: self._pattern("weather")),
            (3, lambda: self._pattern("food")),
            (4, lambda: self._pattern("travel")),
            (2, lambda: self._pattern("sport")),
            (2, lambda: self._pattern("health")),
            (9, lambda: self._pattern("numbers")),
            (5, lambda: self._pattern("list")),
        )
        return self._weighted(kinds)()

    # Patterns

    def fill(self, pattern: str) -> str:
        """`pattern` with every {name} and {form:name} filled."""
        return re.sub(r"\{(?:(\w+):)?(\w+)\}", lambda found: self._slot(found[1], found[2]), pattern)

    def _pattern(self, name: str) -> str:
        return self.fill(self._rng.choice(words.PATTERNS[name]))

    def _slot(self, form: str | None, name: str) -> str:
        if form == "vp":
            return self.verb_phrase("base", (name,)) if name in words.VERBS else self.verb_phrase(name)
        if form == "noun":
            return self._rng.choice(_NOUNS[name])
        if form == "the":
            adjective = self._adjective(name) if self._rng.random() < 0.3 else ""
            return f"{self.fill('{this}')} {adjective} {self._rng.choice(_singular(name))}"
        if form == "plural":
            return plural(self._rng.choice(_countable(name)))
        if name in words.SLOTS:
            return self.fill(self._rng.choice(words.SLOTS[name]))
        if name in _NOUNS:
            return self.noun_phrase(name)
        made: str = getattr(self, f"_slot_{name}")()
        return made

    def _chance(self, share: float) -> bool:
        return self._rng.random() < share

    def _weighted(self, choices: tuple[tuple[int, T], ...]) -> T:
        return self._rng.choices([choice for _, choice in choices], [weight for weight, _ in choices])[0]

    # Noun phrases

    def _adjective(self, kind: str) -> str:
        return self._rng.choice(_ADJECTIVES.get(kind, words.ATTRIBUTES + words.COLORS))

    def noun_phrase(self, kind: str) -> str:
        """Something of a kind, one or many: "my old chair", "two chairs", "Jane's chair"."""
        rng = self._rng
        noun = rng.choice(_NOUNS[kind])
        adjective = self._adjective(kind) if self._chance(0.3) else ""
        if noun in words.UNCOUNTED:
            return f"{rng.choice(('the', 'some', 'all the', 'more', 'enough', *_POSSESSIVES))} {adjective} {noun}"
        way = rng.random()
        if _is_plural(noun):
            return f"{rng.choice(('the', 'these', 'those', *_POSSESSIVES))} {adjective} {noun}"
        if way < 0.62:
            return f"{self.fill('{one}')} {adjective} {noun}"
        return f"{self.fill('{many}')} {adjective} {plural(noun)}"

    def _slot_person_object(self) -> str:
        if self._chance(0.45):
            return self._rng.choice(tuple(_PRONOUNS.values()))
        if self._chance(0.1):
            return self._rng.choice(("somebody", "anyone", "everyone", "each other", "another person", "anybody else"))
        return self.fill("{someone}")

    def _subject(self) -> tuple[str, str, str]:
        """A subject, its number ("I", "one" or "many"), and the pronoun that stands for it."""
        rng = self._rng
        way = rng.random()
        if way < 0.62:
            pronoun = rng.choices(tuple(_PRONOUNS), (8, 6, 5, 4, 5, 5))[0]
            return pronoun, {"I": "I", "he": "one", "she": "one"}.get(pronoun, "many"), pronoun
        if way < 0.86:
            someone = self.fill("{someone}")
            return someone, "one", rng.choice(("he", "she"))
        if way < 0.9:
            return rng.choice(_INDEFINITE[:-1]), "one", "they"
        if way < 0.95:
            return self.fill(f"{rng.choice(('the', 'our', 'their'))} {{noun:group}}"), "one", "it"
        subject = self.fill("{several_people}")
        return subject, "many", "we" if subject.endswith((" I", "us")) else "they"

    # Verb phrases and clauses

    _OBJECTS = (
        (16, "thing", "{thing}"),
        (8, "document", "{document}"),
        (5, "food", "{food_object}"),
        (2, "drink", "{drink_object}"),
        (18, "person", "{person_object}"),
        (8, "place", "{destination}"),
        (5, "device", "{the:device}"),
        (7, "software", "{software}"),
        (12, "abstract", "{abstract}"),
        (8, "topic", "{topic}"),
        (2, "animal", "{animal}"),
        (2, "body", "{own_body}"),
        (3, "sport", "{sport}"),
        (16, "alone", ""),
        (6, "that", "{that_clause}"),
        (8, "infinitive", "to {vp:base}"),
        (4, "gerund", "{vp:ing}"),
    )

    def _verb_and_object(self, kinds: tuple[str, ...] = ()) -> tuple[str, str]:
        self._depth += 1
        choices = tuple(
            (weight, (kind, complement))
            for weight, kind, complement in self._OBJECTS
            if (kind in kinds if kinds else self._depth < 3 or kind not in ("that", "infinitive", "gerund"))
        )
        kind, complement = self._weighted(choices)
        verb = self._rng.choice(words.VERBS[kind])
        complement = self.fill(complement)
        if kind not in ("that", "infinitive", "gerund") and self._depth < 3:
            if self._chance(0.15):
                complement += " " + self._slot_place()
            elif self._chance(0.12):
                complement += " " + self._rng.choice(words.MANNERS)
        self._depth -= 1
        return verb, complement

    def verb_phrase(self, form: str, kinds: tuple[str, ...] = ()) -> str:
        """A verb in a form (see inflect) and what follows it."""
        verb, complement = self._verb_and_object(kinds)
        return f"{inflect(verb, form)} {complement}"

    def _built(self, tense: str = "", negatable: bool = True) -> _Clause:
        rng = self._rng
        subject, number, pronoun = self._subject()
        negative = negatable and subject not in _INDEFINITE and self._chance(0.16)
        if self._chance(0.16) and tense in ("", "present", "past"):
            time = tense or rng.choice(("present", "present", "past"))
            predicate = self.fill(rng.choice(words.SLOTS["predicate_many" if number == "many" else "predicate"]))
            auxiliary = _FINITE["am" if time == "present" else "was"][number]
            return _Clause(subject, pronoun, auxiliary, "", predicate, "", negative)
        choices = tuple((weight, rest) for weight, *rest in _TENSES if not tense or rest[0] == tense)
        time, auxiliary, form = self._weighted(choices)
        verb, complement = self._verb_and_object()
        while form == "ing" and verb in words.STATES:
            verb, complement = self._verb_and_object()
        first, space, others = complement.partition(" ")
        if first == _PRONOUNS.get(subject) and (subject in ("I", "you", "we") or self._chance(0.5)):
            complement = _REFLEXIVES[subject] + space + others
        if self._depth == 0 and self._chance(0.28):
            complement = f"{complement} {self._when(time)}"
        if form in ("going to", "used to"):
            rest = f"{form if form == 'going to' else 'use to'} {verb} {complement}"
        else:
            rest = f"{inflect(verb, form)} {complement}"
        finite = ""
        if auxiliary == "do":
            finite = inflect(verb, "s" if number == "one" else "base")
        elif form == "used to":
            finite = f"used to {verb}"
        elif auxiliary == "did":
            finite = inflect(verb, "past")
        if auxiliary == "modal":
            auxiliary = rng.choice(_MODALS)
        auxiliary = _FINITE[auxiliary][number] if auxiliary in _FINITE else auxiliary
        if finite and form == "base" and not negative and self._chance(0.1):
            finite = f"{rng.choice(words.FREQUENCIES)} {finite}"
        return _Clause(subject, pronoun, auxiliary, finite, rest, complement, negative)

    def _when(self, tense: str) -> str:
        if tense == "past":
            return self.fill("{past_time}")
        if tense == "future":
            return self.fill("{future_time}")
        if tense == "perfect":
            return self.fill("{perfect_time}")
        if tense == "present":
            return self.fill("{present_time}")
        return ""

    def clause(self, tense: str = "") -> str:
        """A statement without its full stop."""
        return self._built(tense).statement(self._chance(0.6))

    def question(self) -> str:
        """A question with its mark."""
        rng = self._rng
        way = rng.random()
        if way < 0.35:
            return f"{self._built().question()}?"
        if way < 0.6:
            word = self.fill("{question_word}")
            if word == "how come":
                return f"{word} {self.clause()}?"
            return f"{word} {self._built(rng.choice(('past', 'present', 'future')), negatable=False).question()}?"
        if way < 0.72:
            return self.fill("{who_question}")
        if way < 0.86:
            subject, number, _ = self._subject()
            kind = rng.choice(("thing", "abstract", "document", "food"))
            verb = rng.choice(words.VERBS[kind])
            asked = self.fill(f"{{asked_{kind}}}")
            auxiliary = rng.choice(("did", "will", _FINITE["do"][number], "can", "should", "would"))
            return f"{asked} {auxiliary} {subject} {verb}?"
        return self.fill("{fixed_question}")

    def _tagged(self) -> str:
        clause = self._built()
        if self._chance(0.5) or clause.auxiliary in ("may", "might"):
            return f"{self.clause()}, {self.fill('{tail}')}"
        return f"{clause.statement(self._chance(0.6))}, {clause.tag()}?"

    def _joined(self) -> str:
        rng = self._rng
        if self._chance(0.4):
            joint = self.fill("{conjunction}")
            tense = rng.choice(("past", "present"))
            first = f"{joint} {self.clause(tense)}"
            second = self.clause("past" if tense == "past" else rng.choice(("future", "present")))
            return f"{first}, {second}" if self._chance(0.5) else f"{second} {first}"
        if self._chance(0.3):
            return f"{rng.choice(words.OPENERS)}, {self.clause()}"
        return f"{self.clause()}, {self.fill('{joint}')} {self.clause()}"

    # What the slots of patterns stand for, where it is more than a choice of words

    def _slot_vp(self) -> str:
        return self.verb_phrase("base")

    def _slot_clause(self) -> str:
        self._depth += 1
        clause = self.clause()
        self._depth -= 1
        return clause

    def _slot_past(self) -> str:
        return self.clause("past")

    def _slot_that_clause(self) -> str:
        return ("that " if self._chance(0.4) else "") + self._slot_clause()

    def _slot_question(self) -> str:
        return self.question()

    def _slot_place(self) -> str:
        return self.fill(self._rng.choice(words.SLOTS["place_phrase"]))

    def _slot_word(self) -> str:
        return self._rng.choice(_vocabulary())

    def _slot_cardinal(self) -> str:
        rng = self._rng
        return cardinal(rng.choice((rng.randrange(100), rng.randrange(20, 100), rng.randrange(100, 1000))))

    def _slot_cardinal_big(self) -> str:
        rng = self._rng
        unit = rng.choice((10, 100, 1000, 1000, 10_000, 100_000, 1_000_000))
        return cardinal(rng.randrange(10, 100) * unit if self._chance(0.7) else rng.randrange(1000, 100_000))

    def _slot_small(self) -> str:
        return cardinal(self._rng.randrange(2, 13))

    def _slot_ordinal(self) -> str:
        return ordinal(self._rng.randrange(1, 32))

    def _slot_year(self) -> str:
        return year(self._rng.randrange(1700, 2030) if self._chance(0.6) else self._rng.randrange(1940, 2026))

    def _slot_price(self) -> str:
        rng = self._rng
        unit, part = rng.choice((("dollars", "cents"), ("dollars", "cents"), ("pounds", "pence"), ("euros", "cents")))
        whole = rng.choice((rng.randrange(2, 20), rng.randrange(20, 100), rng.randrange(1, 100) * 100))
        way = rng.random()
        if way < 0.4:
            return f"{cardinal(whole)} {unit}"
        if way < 0.7:
            return f"{cardinal(whole)} {unit} and {cardinal(rng.randrange(2, 100))} {part}"
        return f"{cardinal(rng.randrange(2, 100))} {rng.choice(('ninety-nine', 'fifty', 'ninety-five', part))}"

    def _slot_clock(self) -> str:
        rng = self._rng
        hour = cardinal(rng.randrange(1, 13))
        minute = rng.randrange(1, 60)
        return rng.choice(
            (
                f"{hour} o'clock",
                f"{hour} {f'oh {_ONES[minute]}' if minute < 10 else cardinal(minute)}",
                f"{hour} {rng.choice(('fifteen', 'thirty', 'forty-five'))}",
                f"half past {hour}",
                f"a quarter {rng.choice(('to', 'past'))} {hour}",
                f"{rng.choice(('five', 'ten', 'twenty'))} {rng.choice(('to', 'past'))} {hour}",
                f"{hour} {rng.choice(('a.m.', 'p.m.'))}",
                f"{hour} in the {rng.choice(('morning', 'afternoon', 'evening'))}",
                rng.choice(("noon", "midnight")),
            )
        )

    def _slot_date(self) -> str:
        rng = self._rng
        month, day = rng.choice(words.MONTHS), ordinal(rng.randrange(1, 32 if self._chance(0.9) else 29))
        return rng.choice((f"{month} {day}", f"{month} the {day}", f"the {day} of {month}"))

    def _slot_digits(self) -> str:
        return " ".join(_ONES[self._rng.randrange(10)] for _ in range(self._rng.randrange(2, 7)))

    def _slot_phone(self) -> str:
        groups = self._rng.choice(((3, 4), (3, 3, 4), (4, 4), (2, 3, 3)))
        zero = self._rng.choice(("oh", "zero"))
        digits = [[self._rng.randrange(10) for _ in range(size)] for size in groups]
        return ", ".join(" ".join(_ONES[digit] if digit else zero for digit in group) for group in digits)

    def _slot_house_number(self) -> str:
        return cardinal(self._rng.randrange(1, 200))

    def _slot_percent(self) -> str:
        return f"{self._slot_decimal() if self._chance(0.3) else cardinal(self._rng.randrange(1, 101))} percent"

    def _slot_decimal(self) -> str:
        places = " ".join(_ONES[self._rng.randrange(10)] for _ in range(self._rng.choice((1, 1, 2))))
        return f"{cardinal(self._rng.randrange(0, 60))} point {places}"

    def _slot_duration(self) -> str:
        rng = self._rng
        if self._chance(0.3):
            return self.fill("{while}")
        number = rng.choice((rng.randrange(2, 13), rng.choice((15, 20, 30, 40, 45, 50))))
        return f"{cardinal(number)} {rng.choice(words.UNITS_OF_TIME[:6])}"

    def _slot_letter(self) -> str:
        return self._rng.choice("BCDEFGHIJKLMNOPQRSTUVWXYZ")

    def _slot_letters(self) -> str:
        return " ".join(self._slot_letter() for _ in range(self._rng.randrange(2, 6)))

    def _slot_gate(self) -> str:
        return f"{self._slot_letter()} {cardinal(self._rng.randrange(1, 60))}"


@cache
def _vocabulary() -> tuple[str, ...]:
    """Every word of the grammar that is not a name, with the forms of verbs, each once."""
    found: dict[str, None] = {}
    verbs = {verb for kind in words.VERBS.values() for verb in kind}
    for verb in sorted(verbs):
        found.update(dict.fromkeys(inflect(verb, form).split(" ")[0] for form in ("base", "s", "ing", "past", "en")))
    nouns = [noun for kind in _NOUNS.values() for noun in kind]
    found.update(dict.fromkeys(plural(noun) for noun in nouns if noun not in words.UNCOUNTED))
    for entries in (
        nouns,
        words.GOOD_BAD,
        words.ATTRIBUTES,
        words.FEELINGS,
        words.TOPICS,
        words.FOODS,
        words.OTHER_WORDS,
    ):
        for entry in entries:
            found.update(dict.fromkeys(entry.split()))
    return (*found, *words.OTHER_WORDS, *words.OTHER_WORDS)  # those that no other pattern says, more often
