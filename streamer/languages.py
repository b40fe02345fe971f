"""Whisper's languages as OpenAI calls them, and their scripts."""

_NAMES = (
    "en:english zh:chinese de:german es:spanish ru:russian ko:korean fr:french ja:japanese pt:portuguese tr:turkish"
    " pl:polish ca:catalan nl:dutch ar:arabic sv:swedish it:italian id:indonesian hi:hindi fi:finnish vi:vietnamese"
    " he:hebrew uk:ukrainian el:greek ms:malay cs:czech ro:romanian da:danish hu:hungarian ta:tamil no:norwegian"
    " th:thai ur:urdu hr:croatian bg:bulgarian lt:lithuanian la:latin mi:maori ml:malayalam cy:welsh sk:slovak"
    " te:telugu fa:persian lv:latvian bn:bengali sr:serbian az:azerbaijani sl:slovenian kn:kannada et:estonian"
    " mk:macedonian br:breton eu:basque is:icelandic hy:armenian ne:nepali mn:mongolian bs:bosnian kk:kazakh"
    " sq:albanian sw:swahili gl:galician mr:marathi pa:punjabi si:sinhala km:khmer sn:shona yo:yoruba so:somali"
    " af:afrikaans oc:occitan ka:georgian be:belarusian tg:tajik sd:sindhi gu:gujarati am:amharic yi:yiddish lo:lao"
    " uz:uzbek fo:faroese ht:haitian_creole ps:pashto tk:turkmen nn:nynorsk mt:maltese sa:sanskrit lb:luxembourgish"
    " my:myanmar bo:tibetan tl:tagalog mg:malagasy as:assamese tt:tatar haw:hawaiian ln:lingala ha:hausa ba:bashkir"
    " jw:javanese su:sundanese yue:cantonese"
)
_OTHER_NAMES = (
    "burmese:my valencian:ca flemish:nl haitian:ht letzeburgesch:lb pushto:ps panjabi:pa moldavian:ro moldovan:ro"
    " sinhalese:si castilian:es mandarin:zh"
)

# By their codes, in the order of their tokens.
LANGUAGE_NAMES = dict(pair.replace("_", " ").split(":") for pair in _NAMES.split())
_CODES = {name: code for code, name in LANGUAGE_NAMES.items()}
_CODES |= dict(pair.split(":") for pair in _OTHER_NAMES.split())

# Characters of scripts whose words have no spaces between them (Thai, Lao, Burmese, Khmer, Japanese, Chinese), as a
# class of regular expressions has them.
WITHOUT_SPACES = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff"
)


def code_of(language: str) -> str:
    """Return the code of a language by its name or code, such as de for German; anything else in lower case."""
    found = language.strip().lower()
    return _CODES.get(found, found)


def name_of(code: str) -> str:
    """Return the name of a language by its code, such as German for de; the code itself if it is unknown."""
    return LANGUAGE_NAMES.get(code, code).title()
