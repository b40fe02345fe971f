"""Whisper's languages: what people and programs call them, and their scripts."""

import difflib
import re
import unicodedata
from collections.abc import Collection, Iterable

from streamer.errors import ConfigError

# Whisper's code, OpenAI's name, and other names: the language's own, those of ISO 639-2 and older codes. In the order
# of the codes' tokens.
_TABLE = """
en english eng; zh chinese 中文 汉语 漢語 mandarin cmn zho chi; de german deutsch deu ger; es spanish español castellano
castilian spa; ru russian русский rus; ko korean 한국어 kor; fr french français fra fre; ja japanese 日本語 jpn;
pt portuguese português por; tr turkish türkçe tur; pl polish polski pol; ca catalan català valencian cat;
nl dutch nederlands flemish nld dut; ar arabic العربية ara; sv swedish svenska swe; it italian italiano ita;
id indonesian bahasa_indonesia ind in; hi hindi हिन्दी हिंदी hin; fi finnish suomi fin; vi vietnamese tiếng_việt vie;
he hebrew עברית heb iw; uk ukrainian українська ukr; el greek ελληνικά ell gre; ms malay bahasa_melayu msa may;
cs czech čeština ces cze; ro romanian română moldavian moldovan ron rum mo; da danish dansk dan;
hu hungarian magyar hun; ta tamil தமிழ் tam; no norwegian norsk bokmål norwegian_bokmål nor nob nb;
th thai ไทย ภาษาไทย tha; ur urdu اردو urd; hr croatian hrvatski hrv; bg bulgarian български bul;
lt lithuanian lietuvių lit; la latin latina lat; mi maori mri mao; ml malayalam മലയാളം mal; cy welsh cymraeg cym wel;
sk slovak slovenčina slk slo; te telugu తెలుగు tel;
fa persian فارسی farsi fas per; lv latvian latviešu lav; bn bengali বাংলা bangla ben; sr serbian српски srpski srp;
az azerbaijani azərbaycan aze; sl slovenian slovenščina slovene slv; kn kannada ಕನ್ನಡ kan; et estonian eesti est;
mk macedonian македонски mkd mac; br breton brezhoneg bre; eu basque euskara eus baq; is icelandic íslenska isl ice;
hy armenian հայերեն hye arm; ne nepali नेपाली nep; mn mongolian монгол mon; bs bosnian bosanski bos; kk kazakh қазақ kaz;
sq albanian shqip sqi alb; sw swahili kiswahili swa; gl galician galego glg; mr marathi मराठी mar;
pa punjabi ਪੰਜਾਬੀ panjabi pan; si sinhala සිංහල sinhalese sin; km khmer ខ្មែរ khm; sn shona chishona sna; yo yoruba yor;
so somali soomaali som; af afrikaans afr; oc occitan oci; ka georgian ქართული kat geo; be belarusian беларуская bel;
tg tajik тоҷикӣ tgk; sd sindhi سنڌي snd; gu gujarati ગુજરાતી guj; am amharic አማርኛ amh; yi yiddish ייִדיש yid ji;
lo lao ລາວ; uz uzbek uzb; fo faroese føroyskt fao; ht haitian_creole haitian kreyòl hat; ps pashto پښتو pushto pus;
tk turkmen tuk; nn nynorsk norwegian_nynorsk nno; mt maltese malti mlt; sa sanskrit संस्कृतम् san;
lb luxembourgish lëtzebuergesch letzeburgesch ltz; my myanmar မြန်မာ burmese mya bur; bo tibetan bod tib;
tl tagalog filipino fil tgl; mg malagasy mlg; as assamese অসমীয়া asm; tt tatar татар tat; haw hawaiian;
ln lingala lin; ha hausa hau; ba bashkir башҡорт bak; jw javanese basa_jawa jv jav; su sundanese basa_sunda sun;
yue cantonese 粵語 粤语
"""


def _folded(name: str) -> str:
    """Return a name without capitals, accents, and what separates its words."""
    parts = unicodedata.normalize("NFKD", re.sub(r"[\s_-]+", " ", name).strip().casefold())
    return "".join(char for char in parts if not unicodedata.combining(char))


_NAMES = [entry.split() for entry in _TABLE.split(";")]

# By their codes, in the order of their tokens.
LANGUAGE_NAMES = {code: name.replace("_", " ") for code, name, *_ in _NAMES}
_CODES = {_folded(name): names[0] for names in _NAMES for name in names}
_CODES |= dict.fromkeys(("", "auto", "und", "mul", "multi"), "auto")

# Characters of scripts whose words have no spaces between them (Thai, Lao, Burmese, Khmer, Japanese, Chinese), as a
# class of regular expressions has them.
WITHOUT_SPACES = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff"
)


def code_of(language: str, where: str = "language") -> str:
    """Return Whisper's code of a language, such as `de` for `German`, `deutsch`, `de-AT`, `de_DE.UTF-8` and `ger`.

    `auto` stands for none. Another code of two or three letters may be one that a fine-tune has added.

    Raises ConfigError for anything else, which `where` gave.
    """
    first = _folded(re.split("[-_.@]", language.strip()[:100])[0])
    code = _CODES.get(_folded(language[:100])) or _CODES.get(first, first)
    if code not in LANGUAGE_NAMES and not re.fullmatch("[a-z]{2,3}|auto", code):
        expected = "expected auto, or a language's name or code such as german, de or de-AT"
        raise ConfigError(f"{where} is {language!r:.60}: {expected}{nearest(language)}")
    return code


def codes_of(languages: Iterable[str]) -> tuple[str, ...]:
    """Return Whisper's codes of languages to choose from. Raises ConfigError as `code_of`, and for `auto`."""
    codes = tuple(dict.fromkeys(code_of(language, "languages") for language in languages))
    if "auto" in codes:
        raise ConfigError(
            "languages contains auto: expected names or codes of languages, or an empty list for all of them"
        )
    return codes


def name_of(code: str) -> str:
    """Return the name of a language by its code, such as German for de; the code itself if it is unknown."""
    return LANGUAGE_NAMES.get(code, code).title()


def nearest(language: str, known: Collection[str] = LANGUAGE_NAMES) -> str:
    """Return up to three known languages that are spelled nearly so, as the end of a message; empty if none is."""
    names = {name: code for name, code in _CODES.items() if code in known}
    found = dict.fromkeys(names[name] for name in difflib.get_close_matches(_folded(language[:100]), names, 3, 0.7))
    return f"; did you mean {' or '.join(f'{code} ({name_of(code)})' for code in found)}?" if found else ""
