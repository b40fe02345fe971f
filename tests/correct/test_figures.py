"""What is written as figures, and what stays in words."""

import dataclasses

import pytest

from streamer.correct.corrector import Heard, RecordingCorrector, text_of
from streamer.correct.figures import Figures, figured
from streamer.events import Final, Word


def written(text: str, language: str = "en") -> str:
    """Return a text with its figures."""
    words = text.split()
    for place, figures in reversed(figured(words, language)):
        words[place.start : place.stop] = figures.split()
    return " ".join(words)


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        # Numbers.
        ("There were twenty-five of them.", "There were 25 of them."),
        ("There were twenty five, I think.", "There were 25, I think."),
        ("Twelve came", "12 came"),
        ("one hundred and one dalmatians", "101 dalmatians"),
        ("a hundred and twenty people", "120 people"),
        ("It has two hundred and fifty thousand inhabitants", "It has 250,000 inhabitants"),
        ("two thousand five hundred cars", "2500 cars"),
        ("about three million people", "about 3 million people"),
        ("about three point five million people", "about 3.5 million people"),
        ("two million five hundred thousand people", "2,500,000 people"),
        ("it is three point one four", "it is 3.14"),
        ("it grew three point five times", "it grew 3.5 times"),
        ("twenty, twenty-five", "20, 25"),
        ("ten, eleven and twelve", "10, 11 and 12"),
        ("between twenty and thirty", "between 20 and 30"),
        ('"Eleven," she said', '"11," she said'),
        ("in the past fifty years", "in the past 50 years"),
        ("at this point twenty people left", "at this point 20 people left"),
        ("minus ten degrees", "minus 10 degrees"),
        ("five kilometers from here", "5 kilometers from here"),
        ("after three degrees", "after 3 degrees"),
        # Money.
        ("five dollars and fifty cents", "$5.50"),
        ("It costs five dollars, they said.", "It costs $5, they said."),
        ("nineteen dollars, ninety-five cents", "$19.95"),
        ("twenty dollars five cents.", "$20.05."),
        ("a twenty dollar bill", "a $20 bill"),
        ("fifty thousand euros", "€50,000"),
        ("three million dollars", "$3 million"),
        ("three point five million dollars", "$3.5 million"),
        ("a hundred dollars", "$100"),
        ("five pounds and fifty pence", "£5.50"),
        ("ten pounds sterling", "£10"),
        ("twenty pounds of sugar", "20 pounds of sugar"),
        ("five dollars to ten dollars", "$5 to $10"),
        ("fifty dollars' worth of it", "50 dollars' worth of it"),
        ("one dollar an hour", "$1 an hour"),
        # Percent.
        ("a hundred percent", "100%"),
        ("one percent of it", "1% of it"),
        ("seven per cent.", "7%."),
        ("three point five percent", "3.5%"),
        ("by two point five percent to three hundred million euros", "by 2.5% to €300 million"),
        # Dates and years.
        ("the third of March", "the 3rd of March"),
        ("on March twenty first", "on March 21st"),
        ("on March the third, nineteen eighty four", "on March the 3rd, 1984"),
        ("July fourth two thousand and five was warm", "July 4th 2005 was warm"),
        ("on August nine, nineteen sixty-three, he left", "on August 9, 1963, he left"),
        ("November twenty-two nineteen sixty three", "November 22 1963"),
        ("between November five, and May two", "between November 5, and May 2"),
        ("on the tenth April, eighteen forty,", "on the 10th April, 1840,"),
        ("either April two or April three.", "either April 2 or April 3."),
        ("in March, nineteen thirty-three", "in March, 1933"),
        ("In eighteen eleven Williams left", "In 1811 Williams left"),
        ("In nineteen eighty-four it was sold.", "In 1984 it was sold."),
        ("since twenty twenty five", "since 2025"),
        ("from nineteen eighty to nineteen ninety", "from 1980 to 1990"),
        ("since nineteen eighty, nineteen eighty-one", "since 1980, 1981"),
        ("in nineteen oh five", "in 1905"),
        ("In the summer of nineteen sixty nine", "In the summer of 1969"),
        ("by the end of twenty twenty three", "by the end of 2023"),
        ("eighteen hundred years", "1800 years"),
    ],
)
def test_what_is_sure_becomes_figures(text: str, figures: str) -> None:
    assert written(text) == figures


@pytest.mark.parametrize(
    "text",
    [
        # Small numbers, and words that are numbers only sometimes.
        "no one came",
        "I want this one and that one",
        "one by one",
        "two to two, to too two",
        "three cats and nine dogs",
        "nine or ten people",
        "one of twenty reasons",
        "nobody but one meters it out",
        "the second one",
        "in a second",
        "twenty second timer",
        "ten second delay",
        "one third of it",
        "the twenty-first century",
        "ten and a half",
        "two and a half million",
        "half a million",
        "hundreds of people",
        "tens of thousands",
        "two hundreds",
        "a thousand thanks",
        "like a million dollars",
        "a million dollar baby",
        "twenty odd years",
        "a ten-year-old boy",
        "twenty-something",
        "fifty-fifty",
        "double o seven",
        # Numbers side by side: years, telephones, prices, sizes.
        "twenty twenty five",
        "nineteen eighty four people",
        "in twenty twenty-five minutes",
        "nineteen seventies",
        "five five five one two three four",
        "one twenty three",
        "twenty four seven",
        "thirty oh five",
        "ten oh one",
        "twenty and five",
        "between one hundred and two hundred",
        # Times.
        "half past three",
        "half past ten",
        "ten past eleven",
        "ten to eleven",
        "a quarter to twelve",
        "twenty to nine",
        "eleven o'clock",
        "three thirty",
        # Money and percent that are not sure.
        "ten thousand, five hundred pounds",
        "five foot eleven",
        "five or six dollars",
        "ten or twenty dollars",
        "five pounds",
        "my two cents",
        "ten point",
        "point five percent",
        # Names.
        "We watched Ocean's Eleven.",
        "Nineteen Eighty-Four",
        "Seven Eleven",
        # Dates that may be none.
        "May second that",
        "in March five people came",
        "",
        "nothing at all",
    ],
)
def test_what_is_not_sure_stays_in_words(text: str) -> None:
    assert written(text) == text


@pytest.mark.parametrize(
    ("language", "text", "figures"),
    [
        ("fr", "vingt et un ans", "21 ans"),
        ("fr", "quatre-vingt-dix-sept pour cent", "97 pour cent"),
        ("fr", "un homme et neuf femmes", "un homme et neuf femmes"),
        ("fr", "neuf heures trente", "neuf heures trente"),
        ("fr", "le premier mai", "le premier mai"),
        ("fr", "deux millions", "deux millions"),
        ("de", "einundzwanzig Leute", "21 Leute"),
        ("de", "ein Mann, zwei Frauen", "ein Mann, zwei Frauen"),
        ("de", "sieben und zwanzig", "sieben und zwanzig"),
        ("de", "zehn vor elf", "zehn vor elf"),
        ("de", "neunzehnhundertvierundachtzig", "1984"),
        ("es", "treinta y uno", "31"),
        ("es", "uno de ellos", "uno de ellos"),
        ("es", "veinte por ciento", "20 por ciento"),
        ("it", "ventuno giorni", "21 giorni"),
        ("it", "venti per cento", "20 per cento"),
        ("pt", "vinte e um dias", "21 dias"),
        ("nl", "eenentwintig dagen", "21 dagen"),
        ("nl", "een elf", "een elf"),
        ("pl", "dwadzieścia jeden", "dwadzieścia jeden"),
        ("ja", "二十一", "二十一"),
    ],
)
def test_other_languages_get_whole_numbers_where_the_library_is_sure(language: str, text: str, figures: str) -> None:
    assert written(text, language) == figures


def heard(*words: tuple[str, float, float], language: str = "en") -> Heard:
    timed = tuple(Word(word=w, start=a, end=b, probability=0.5, stable=True, speaker="S1") for w, a, b in words)
    text = text_of(timed)
    final = Final(
        segment=1,
        start=0.0,
        end=9.0,
        text=text,
        words=timed,
        language=language,
        no_speech_prob=0.0,
        avg_logprob=-0.1,
    )
    return Heard(final, timed, (), lambda: None)


def test_figures_span_the_words_that_they_are_made_of() -> None:
    said = heard(
        (" It", 0.0, 1.0), (" costs", 1.0, 2.0), (" twenty", 2.0, 3.0), ("-five", 3.0, 4.0), (" dollars.", 4.0, 5.0)
    )
    words = Figures().correct(said, 1.0)
    assert [(word.word, word.start, word.end, word.speaker) for word in words] == [
        (" It", 0.0, 1.0, "S1"),
        (" costs", 1.0, 2.0, "S1"),
        (" $25.", 2.0, 5.0, "S1"),
    ]


def test_numbers_with_a_pause_between_them_are_not_one() -> None:
    said = heard((" twenty", 0.0, 1.0), (" five.", 2.0, 3.0))
    assert tuple(Figures().correct(said, 1.0)) == said.words


def test_a_final_without_numbers_keeps_its_very_words() -> None:
    said = heard((" nothing", 0.0, 1.0), (" here", 1.0, 2.0))
    assert all(a is b for a, b in zip(Figures().correct(said, 1.0), said.words, strict=True))


def test_a_recording_is_told_in_figures_by_the_rules_of_the_language_of_its_text() -> None:
    words = tuple(
        Word(word=f" {word}", start=float(n), end=n + 1.0, probability=0.9, stable=True)
        for n, word in enumerate(("the", "elf", "had", "elf", "friends"))
    )
    final = Final(
        segment=1, start=0.0, end=5.0, text="the elf had elf friends", words=words, language="de", no_speech_prob=0.0,
        avg_logprob=0.0,
    )  # fmt: skip
    assert RecordingCorrector([Figures()], "transcribe").corrected(final).text == "the 11 had 11 friends"
    assert RecordingCorrector([Figures()], "translate").corrected(final) is final


def test_a_number_of_a_recording_that_may_have_begun_in_the_final_before_stays_in_words() -> None:
    correctors = RecordingCorrector([Figures()], "transcribe")
    texts = ("In nineteen", "fifty-three it was.", "Fifty-three it was.")
    said = [heard(*((f" {word}", float(n), n + 1.0) for n, word in enumerate(text.split()))).final for text in texts]
    assert [correctors.corrected(final).text for final in said] == [*texts[:2], "53 it was."]


@pytest.mark.parametrize(("before", "text"), [("", "it left in nineteen"), ("it left in nineteen", "fifty-three.")])
def test_a_number_that_may_go_on_in_another_final_stays_in_words(before: str, text: str) -> None:
    words = text.split()
    said = heard(*((f" {word}", float(n), n + 1.0) for n, word in enumerate(words)))
    assert text_of(Figures().correct(dataclasses.replace(said, before=(before,)), 1.0)) == text
    whole = dataclasses.replace(said, before=("It was so.",))
    assert (text_of(Figures().correct(whole, 1.0)) == text) == (text[-1] != ".")
