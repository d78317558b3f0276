"""For no character of Unicode does a spelling make two users of one person."""

import sys
import unicodedata

import pytest
import regex

from taciturn.data.users import first_user_id, possible_ids, user_id

IGNORABLE = regex.compile(r"\p{Default_Ignorable_Code_Point}")
NEVER_SEEN = regex.compile(r"[\p{Default_Ignorable_Code_Point}\p{Noncharacter_Code_Point}]")
# Blanks are of another kind: they part words.
INVISIBLE = regex.compile(r"[\p{Cc}\p{Cf}--\s]|\p{Default_Ignorable_Code_Point}", regex.V1)
FORMS = ("NFC", "NFD", "NFKC", "NFKD")


def characters():
    """Return all characters that have a meaning, and those that never will have a shape."""
    for code in range(0x20, sys.maxunicode + 1):
        character = chr(code)
        has_meaning = unicodedata.category(character) not in ("Cn", "Co", "Cs")
        if has_meaning or IGNORABLE.fullmatch(character):
            yield character


def forms(spelling):
    """Return the other spellings that programs make of one, less those that are the same."""
    cases = {spelling.upper(), spelling.lower(), spelling.title(), spelling.swapcase()}
    normal = {unicodedata.normalize(form, spelling) for form in FORMS}
    return (cases | normal) - {spelling}


def differences(id_of):
    """List the characters that make two users of one, in another case or form, or unseen."""
    found = []
    for character in characters():
        spelling = f"ä{character}y"
        id = id_of(spelling)
        others = [id_of(form) for form in forms(spelling)]
        # What makes no difference once must make none when it is folded again.
        others.append(id_of(id))
        if INVISIBLE.fullmatch(character):
            others.append(id_of("äy"))
        if set(others) != {id}:
            found.append(character)
    return found


def test_no_character_makes_two_users_of_one_person():
    assert differences(user_id.__wrapped__) == []


def test_the_twin_of_earlier_versions_takes_some_for_a_difference():
    found = differences(first_user_id.__wrapped__)
    assert {"\u034f", "\ufe0f", "\u115f", "\u3164", "\U000e0100", "ı"} <= set(found)
    assert len(found) > 250


def test_a_character_of_a_later_unicode_is_in_an_id_before_it_has_a_meaning():
    """After an update, next year's emoji would make another person of whoever has one."""
    later = []
    for character in map(chr, range(0, sys.maxunicode + 1, 97)):
        is_unknown = unicodedata.category(character) == "Cn"
        if is_unknown and not NEVER_SEEN.fullmatch(character):
            later.append(character)
    assert len(later) > 1000
    assert [user_id(f"ann{character}") for character in later] == [f"ann{sign}" for sign in later]
    assert first_user_id("ann\u0378") == "ann"  # the twin
    # Noncharacters will never have one.
    assert user_id("ann\ufdd0\uffff\U0010ffff") == "ann"


@pytest.mark.parametrize("spelling", ["ann\ufe0f", "ı", "007"])
def test_both_ids_of_a_person_are_looked_up_where_the_first_rule_holds(spelling):
    first, second = possible_ids(spelling, 1)
    assert (first, second) == (first_user_id(spelling), user_id(spelling))
    assert possible_ids(spelling, 2) == [user_id(spelling)]


def test_no_user_is_one_of_nobody():
    assert possible_ids("\u3164", 1) == possible_ids("[deleted]", 2) == []
