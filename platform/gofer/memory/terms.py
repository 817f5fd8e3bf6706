"""Words as the index of memories knows them: normalised, without stop words, stemmed by language, hashed with a key.

Scripts without spaces between words are cut into pairs of characters. A date becomes terms of its own, so that "in
May", "im Mai" and "5月" find what was said in May. What a text is made of depends on its language, which is guessed
from its stop words; a query is tried in every language that has its script.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Any

from gofer.vault.envelope import MacKey, joined

MAX_BYTES = 16 * 1024
"""Of a text that are indexed."""
MAX_QUERY = 2000
"""Characters of a query that are looked at."""
MAX_QUERY_TERMS = 32
_MAX_WORD = 64

_STOP_WORDS = {
    "english": "a about above after again all am an and any are as at be because been before being below "
    "between both "
    "but by can could did do does doing don down during each few for from further had has have having he her here "
    "hers him his how i if in into is it its just let me more most my no nor not of off on once only or other "
    "our out "
    "over own re s same she should so some such t than that the their them then there these they this those through "
    "to too under until up ve very was we were what when where which while who whom why will with would you your ll "
    "yeah oh okay ok really also got get",
    "german": "aber alle als also am an auch auf aus bei beim bin bis bist da damit dann das dass dein deine dem den "
    "denn der des dich die dir doch du durch ein eine einem einen einer eines er es euch euer für hab habe "
    "haben hast "
    "hat hatte hatten ich ihm ihn ihr ihre im in ins ist ja jetzt kann kein keine mal man mehr mein meine meinem "
    "meinen meiner mich mir mit nach nicht noch nun nur ob oder schon sehr sein seine seinem seinen seiner sich sie "
    "sind so "
    "soll über um und uns unser unsere unserer vom von vor war waren warum was weil welche welchen welcher "
    "welches wem "
    "wen wenn wer werden wie wieder will wir wird wo wurde zu zum zur",
    "french": "ai alors as au aussi aux avec avez avoir avons bien c ce cela ces cet cette comme d dans de des "
    "du elle "
    "en est et eu il ils j je l la le les leur lui m ma mais me mes moi mon n ne nos notre nous on ont ou où par pas "
    "plus pour qu quand que quel quelle qui quoi s sa sans se ses si son sont sur t ta te tes toi ton très tu un une "
    "vos votre vous y était être",
    "spanish": "a al algo como con cuando cuál de del desde donde dónde e el ella ellos en era eres es esa ese eso "
    "esta estaba este esto estoy está fue ha hay he la las le les lo los me mi mis muy más ni no nos nosotros o "
    "para pero "
    "por porque que quien quién qué se ser si sin sobre son su sus sí también te tengo ti tiene tu tus un una uno "
    "y ya "
    "yo",
    "italian": "a ad ai al alla anche che chi ci come con cosa da dal dei del della di dove e ed era gli ha hai ho i "
    "il in io la le lei lo loro lui ma mi mia mio ne nei nel nella noi non o per perché più quando quale "
    "quello questo "
    "se sei si sono su sua suo ti tra tu tuo un una uno voi è",
    "portuguese": "a ao as com como da das de dela dele do dos e ela ele em era essa esse esta este eu foi há "
    "isso já "
    "lhe mais mas me meu minha muito na nas no nos não o os ou para pela pelo por porque qual quando que quem se sem "
    "ser seu sua são também te tem tenho um uma você é",
    "dutch": "aan al als bij dan dat de deze die dit doen door dus een en er had heb hebben heeft het hier hij "
    "hoe hun "
    "ik in is je jij kan maar me meer met mij mijn naar niet nog nu of om omdat ons ook op over te toen tot uit van "
    "veel voor waar was wat we welke wel werd wie wij worden zal ze zich zij zijn zo zou",
    "russian": "а без бы был была были было быть в вам вас весь во вот все вы где да для до его ее ей если есть "
    "еще же "
    "за и из или им их к как какой когда который кто ли меня мне мой мы на над нас не него нет ни но ну о об он она "
    "они от по под при с со так такой там то тот ты у уже чем что чтобы эта это этот я",
}
STOP_WORDS = {language: frozenset(words.split()) for language, words in _STOP_WORDS.items()}
_OTHERWISE = "english"
_LATIN = tuple(language for language in STOP_WORDS if language != "russian")
_BY_SCRIPT = {
    "CYRILLIC": "russian",
    "GREEK": "greek",
    "ARABIC": "arabic",
    "DEVANAGARI": "hindi",
    "ARMENIAN": "armenian",
}
_HAN = "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_HIRAGANA, _KATAKANA, _HANGUL = "\u3041-\u309f", "\u30a0-\u30ff\u31f0-\u31ff", "\uac00-\ud7af\u1100-\u11ff"
_SPACELESS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
"""Thai, Lao, Burmese, Khmer."""
_LETTERS = f"[^\\W_{_HAN}{_HIRAGANA}{_KATAKANA}{_HANGUL}{_SPACELESS}]"
_MARKS = "[\u0300-\u036f\u0591-\u05bd\u05bf-\u05c7\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0dff\u200c\u200d]"
"""Accents, points and vowel signs, which are no letters: they stand inside words, of Hindi and Tamil for example."""
_RUNS = re.compile(
    f"(?P<pairs>[{_HAN}]+|[{_KATAKANA}]+|[{_HANGUL}]+|[{_SPACELESS}]+)|(?P<kana>[{_HIRAGANA}]+)"
    f"|(?P<word>{_LETTERS}+(?:{_MARKS}+{_LETTERS}*)*)"
)
_JOINERS = "\u200c\u200d"
_MIN_KANA = 3
"""Shorter runs of hiragana are particles and endings."""
_ENDINGS = frozenset(re.findall("..", "まししたですますってないてもではからけどいるていいまょうでし"))
"""Pairs that say nothing."""
_FROM_EMOJI = re.compile("[\U0001f300-\U0001faff\u2600-\u27bf]")

_MONTHS = {
    name: number
    for names in (
        "january february march april may june july august september october november december",
        "januar februar märz april mai juni juli august september oktober november dezember",
        "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
        "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
        "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
        "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
        "januari februari maart april mei juni juli augustus september oktober november december",
        "января февраля марта апреля мая июня июля августа сентября октября ноября декабря",
    )
    for number, name in enumerate(names.split(), 1)
}
_ALSO_A_WORD = frozenset(("may", "march", "mars", "august"))
"""Months only with a capital letter."""
_ISO = re.compile(r"\b((?:19|20)\d\d)-(\d\d?)(?:-(\d\d?))?\b")
_DOTTED = re.compile(r"\b(\d\d?)\.(\d\d?)\.((?:19|20)\d\d)?(?!\d)")
_EAST_ASIAN = re.compile(r"(?:((?:19|20)\d\d)年)?\s*(\d\d?)[月월](?:\s*(\d\d?)[日일])?")
_DAY = re.compile(r"(\d\d?)(?:st|nd|rd|th)?")
_YEAR = re.compile(r"\b((?:19|20)\d\d)(?!\d)")


class Terms:
    """How often each term is in a text, and how many terms there are; `dates` do not count towards its length."""

    __slots__ = ("counts", "length")

    def __init__(self, words: Iterable[str], dates: Iterable[str] = ()) -> None:
        self.counts: dict[str, int] = {}
        self.length = 0
        for word in words:
            self.counts[word] = self.counts.get(word, 0) + 1
            self.length += 1
        for date in dates:
            self.counts[date] = 1


def text_terms(text: str, *, speaker: str = "", at: float | None = None, before: str = "") -> Terms:
    """The terms of something that was said: when, by whom, and what was said just `before` it."""
    kept, context = _bounded(text), _bounded(before)
    language = guess_language(f"{context} {kept}")
    words = [*_words(_bounded(speaker), language), *_words(context, language), *_words(kept, language)]
    return Terms(words, _day_terms(at))


def query_terms(query: str) -> list[frozenset[str]]:
    """What to look for: for each word of a query the terms that it may be stored as. Empty for a query without words,
    or of stop words alone."""
    asked = _bounded(query[:MAX_QUERY])
    guessed = _guess(asked)
    found: dict[frozenset[str], None] = {}
    for kind, token in _tokens(asked):
        if kind == "word":
            if token in STOP_WORDS.get(guessed, ()):
                continue
            found[frozenset(_stem(token, one) for one in _tried(token, guessed))] = None
        else:
            found[frozenset((token,))] = None
    for date in _asked_dates(unicodedata.normalize("NFKC", query[:MAX_QUERY])):
        found[frozenset((date,))] = None
    return list(found)[:MAX_QUERY_TERMS]


def to_hash(term: str) -> bytes:
    """A term as `hashed` takes it. A search makes it once, and hashes it with the key of each scope."""
    return joined("term", term)


def hashed(term: bytes, key: MacKey) -> int:
    """A term as the index stores it: 63 bits that say nothing without the key."""
    return int.from_bytes(key.mac_of(term)[:8]) >> 1


def guess_language(text: str) -> str:
    """The language with the most stop words in a text; English when there are none."""
    return _guess(text) or _OTHERWISE


def _guess(text: str) -> str:
    counts = dict.fromkeys(STOP_WORDS, 0)
    for kind, token in _tokens(text):
        if kind == "word":
            for language, words in STOP_WORDS.items():
                counts[language] += token in words
    best = max(counts, key=lambda language: counts[language])
    return best if counts[best] else ""


def _bounded(text: str) -> str:
    """At most the first 16 KiB, in one form of each character; lone surrogates are left out."""
    kept = text[:MAX_BYTES].encode("utf-8", "ignore")[:MAX_BYTES].decode("utf-8", "ignore")
    return unicodedata.normalize("NFKC", kept).casefold()


def _words(text: str, language: str) -> Iterator[str]:
    stops = STOP_WORDS.get(language, frozenset())
    for kind, token in _tokens(text):
        if kind != "word":
            yield token
        elif token not in stops:
            yield _stem(token, _language_of(token, language))


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """Words, and pairs of characters where words are not apart."""
    for found in _RUNS.finditer(text):
        kind, run = str(found.lastgroup), found.group()
        if kind == "word":
            yield kind, run[:_MAX_WORD]
        elif kind == "pairs" or len(run) >= _MIN_KANA:
            for pair in _pairs(run):
                yield "pair", pair
    for emoji in _FROM_EMOJI.findall(text):
        yield "pair", emoji


def _pairs(run: str) -> Iterator[str]:
    if len(run) == 1:
        yield run
    for start in range(len(run) - 1):
        pair = run[start : start + 2]
        if pair not in _ENDINGS:
            yield pair


def _languages(token: str) -> tuple[str, ...]:
    script = _script(token)
    return _LATIN if script == "LATIN" else (_BY_SCRIPT.get(script, ""),)


def _tried(token: str, guessed: str) -> tuple[str, ...]:
    """The languages in which a word of a query may have been stored: a text without stop words counts as English."""
    allowed = _languages(token)
    return (guessed, _OTHERWISE) if guessed in allowed and _OTHERWISE in allowed else allowed


def _language_of(token: str, language: str) -> str:
    """A text's language, where the token has its script; else the language that has it."""
    allowed = _languages(token)
    return language if language in allowed else allowed[0]


@lru_cache(maxsize=4096)
def _script(token: str) -> str:
    letter = next((char for char in token if char.isalpha()), "")
    return unicodedata.name(letter, "").split(" ")[0] if letter else ""


@lru_cache(maxsize=65536)
def _stem(token: str, language: str) -> str:
    """The stem, without accents; the word itself in a language that has no stemmer."""
    stemmed = _stemmer(language).stemWord(token) if language else token
    plain = unicodedata.normalize("NFD", stemmed)
    kept = (char for char in plain if not unicodedata.combining(char) and char not in _JOINERS)
    return "".join(kept) or token


@cache
def _stemmer(language: str) -> Any:
    import snowballstemmer  # with all its languages 4 MiB, which an idle server does without

    return snowballstemmer.stemmer(language)


def _day_terms(at: float | None) -> Iterator[str]:
    if at is None or not 0 <= at < 253402300800:  # the year 10000
        return
    day = datetime.fromtimestamp(at, UTC)
    yield from _date_terms(day.year, day.month, day.day)


def _date_terms(year: int | None, month: int | None, day: int | None) -> Iterator[str]:
    """Terms that no word can be: words have no colon."""
    if year:
        yield f"year:{year}"
    if month and 1 <= month <= 12:
        yield f"month:{month}"
        if day and 1 <= day <= 31:
            yield f"day:{month}-{day}"


def _asked_dates(text: str) -> Iterator[str]:
    for year in _YEAR.findall(text):
        yield f"year:{year}"
    for _, month, day in _ISO.findall(text):
        yield from _date_terms(None, int(month), int(day or 0))
    for day, month, _ in _DOTTED.findall(text):
        yield from _date_terms(None, int(month), int(day))
    for _, month, day in _EAST_ASIAN.findall(text):
        yield from _date_terms(None, int(month), int(day or 0))
    words = re.findall(r"\w+", text)
    for place, word in enumerate(words):
        month = _MONTHS.get(word.casefold())
        if month is None or (word in _ALSO_A_WORD):
            continue
        beside = (*words[max(0, place - 2) : place], *words[place + 1 : place + 2])
        days = [int(found[1]) for near in beside if (found := _DAY.fullmatch(near))]
        yield from _date_terms(None, month, days[-1] if days else None)
