"""What lies beside a dictionary for a phone: a page with the steps, and a file of next words.

Keyboards of the AOSP family load the dictionary itself. AnySoftKeyboard has its words in language
packs and takes from a file only which words follow which, as the backup that it writes itself.
"""

from collections.abc import Iterator
from html import escape
from importlib.resources import files
from string import Template
from xml.sax.saxutils import quoteattr

from taciturn.export.aosp_dictionary import Dictionary, Entry, from_level

PAGE = "read_me.html"
NEXT_WORDS = "AnySoftKeyboardPrefs.xml"
# AnySoftKeyboard remembers the followers of this many words, and this many of each.
MOST_WORDS = 900
MOST_FOLLOWERS = 12


def write_page(*, name: str, dictionary: str, description: str, statement: str) -> str:
    """Return the page that says which file goes where.

    Args:
        name: of the run.
        dictionary: the name of its file.
        description: what the dictionary's header says of it.
        statement: what was promised, as guarantee.txt has it.
    """
    page = (files("taciturn.export") / "phone" / PAGE).read_text("utf-8")
    return Template(page).substitute(
        name=escape(name),
        dictionary=escape(dictionary),
        next_words=NEXT_WORDS,
        description=escape(description),
        statement=escape(statement),
    )


def write_next_words(dictionary: Dictionary, language: str) -> str:
    """Return the backup from which AnySoftKeyboard restores next words.

    Args:
        dictionary: of words and those that follow them.
        language: of the words.
    """
    lines = [
        "<?xml version='1.0' encoding='UTF-8' ?>",
        '<AnySoftKeyboardPrefs version="1">',
        '<pref><value providerId="NextWordPrefsProvider"/><value version="1"/>',
        f"<pref><pref><value locale={quoteattr(language)}/>",
    ]
    for word, entry in _most_frequent(dictionary):
        lines.append(f"<pref><value word={quoteattr(word)}/>")
        lines += _list_followers(dictionary, entry)
        lines.append("</pref>")
    lines.append("</pref></pref></pref>")
    lines.append("</AnySoftKeyboardPrefs>")
    return "".join(f"{line}\n" for line in lines)


def _most_frequent(dictionary: Dictionary) -> list[tuple[str, Entry]]:
    """Return the most frequent of the words that others follow."""
    followed = [(word, entry) for word, entry in dictionary.words.items() if entry.followers]
    return sorted(followed, key=lambda word_and_entry: -word_and_entry[1].frequency)[:MOST_WORDS]


def _list_followers(dictionary: Dictionary, entry: Entry) -> Iterator[str]:
    """Yield a line for each follower, the likeliest first: the app counts all as used alike."""
    frequencies = {
        follower.word: from_level(dictionary.words[follower.word].frequency, follower.level)
        for follower in entry.followers
    }
    likeliest_first = sorted(frequencies, key=lambda word: -frequencies[word])
    for word in likeliest_first[:MOST_FOLLOWERS]:
        yield f'<pref><value nextWord={quoteattr(word)}/><value usedCount="1"/></pref>'
