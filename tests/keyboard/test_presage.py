"""Presage, which has counted keystrokes for years, loads our n-grams and counts the same as we do
under its own definition.
"""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from taciturn.data.vocabulary import SPECIAL, Vocabulary
from taciturn.export.arpa import arpa_words, write_arpa
from taciturn.models.ngram import NGram, kneser_ney

pytestmark = pytest.mark.skipif(
    shutil.which("presage_simulator") is None,
    reason="presage is not installed (Debian: apt install presage)",
)
OFFERED = 6
WORDS = """
    a about after all and as at be been but by can come could day do even first for from get
    give go good had have he her here him his how if in into it its just know like look make
    many me more most my new no not now of on one only or other our out over people said say
    see she so some take than that the their them then there these they thing think this time
    to two up us use very want was way we well what when which who will with work would year
    you your
""".split()  # noqa: SIM905


def people_talking(sentences: int, seed: int) -> list[str]:
    """Made-up text in which some words follow others more often."""
    generator = np.random.default_rng(seed)
    follows = np.random.default_rng(1).dirichlet(np.full(len(WORDS), 0.05), len(WORDS))
    texts = []
    for _ in range(sentences):
        word, text = int(generator.integers(len(WORDS))), []
        for _ in range(12):
            text.append(WORDS[word])
            word = int(generator.choice(len(WORDS), p=follows[word]))
        texts.append(" ".join(text))
    return texts


def config(folder: Path, arpa: Path, words: Path) -> Path:
    path = folder / "presage.xml"
    path.write_text(f"""<?xml version="1.0" encoding="UTF-8" standalone="no" ?>
<Presage>
  <PredictorRegistry><LOGGER>ERROR</LOGGER><PREDICTORS>Ours</PREDICTORS></PredictorRegistry>
  <ContextTracker><LOGGER>ERROR</LOGGER><SLIDING_WINDOW_SIZE>80</SLIDING_WINDOW_SIZE>
    <LOWERCASE_MODE>yes</LOWERCASE_MODE><ONLINE_LEARNING>no</ONLINE_LEARNING></ContextTracker>
  <Selector><LOGGER>ERROR</LOGGER><SUGGESTIONS>{OFFERED}</SUGGESTIONS>
    <REPEAT_SUGGESTIONS>no</REPEAT_SUGGESTIONS>
    <GREEDY_SUGGESTION_THRESHOLD>0</GREEDY_SUGGESTION_THRESHOLD></Selector>
  <PredictorActivator><LOGGER>ERROR</LOGGER><PREDICT_TIME>1000</PREDICT_TIME>
    <MAX_PARTIAL_PREDICTION_SIZE>60</MAX_PARTIAL_PREDICTION_SIZE>
    <COMBINATION_POLICY>Meritocracy</COMBINATION_POLICY>
  </PredictorActivator>
  <ProfileManager><LOGGER>ERROR</LOGGER><AUTOPERSIST>false</AUTOPERSIST></ProfileManager>
  <Predictors><Ours><PREDICTOR>ARPAPredictor</PREDICTOR><LOGGER>ERROR</LOGGER>
    <ARPAFILENAME>{arpa}</ARPAFILENAME><VOCABFILENAME>{words}</VOCABFILENAME><TIMEOUT>100</TIMEOUT>
  </Ours></Predictors>
</Presage>
""")
    return path


def presage_counts(folder: Path, model: NGram, vocabulary: Vocabulary, text: str) -> dict[str, int]:
    write_arpa(folder / "model.arpa", model, vocabulary.words, [])
    (folder / "words.txt").write_text("\n".join(arpa_words(vocabulary.words)) + "\n")
    (folder / "text.txt").write_text(text)
    settings = config(folder, folder / "model.arpa", folder / "words.txt")
    ran = subprocess.run(
        ["presage_simulator", "--silent", "--config", settings, folder / "text.txt"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"HOME": str(folder)},
    )
    return {
        name: int(value)
        for name, value in re.findall(r"^(k[isn]) : (\d+)$", ran.stdout, re.MULTILINE)
    }


def our_counts(
    model: NGram, vocabulary: Vocabulary, text: str, offered: int = OFFERED
) -> dict[str, int]:
    """Presage's rules: no beginning of a sentence; special signs may be offered; what was offered
    for a word is not offered again for it; of equally likely words the last in the list comes
    first.
    """
    state, counts = (), {"ki": 0, "ks": 1, "kn": 0}  # one keystroke to get at the list
    for word in text.split():
        place, scores = vocabulary.ids[word], model.scores(state)
        counts["kn"] += len(word) + 1
        refused: set[int] = set()
        for typed in range(len(word) + 1):
            fitting = [
                one
                for one in range(1, len(vocabulary))
                if vocabulary.words[one].startswith(word[:typed])
            ]
            ranked = sorted(fitting, key=lambda one: (-scores[one], -one))
            strip = [one for one in ranked if one not in refused][:offered]
            if place in strip:
                break
            refused.update(strip)
        if place in strip and typed == 0:
            counts["ks"] += 1
        else:
            counts["ki"] += typed + 1  # and one more to choose, or a space
        state = model.read(state, place)
    return counts


@pytest.mark.parametrize("seed", [2, 3])
def test_presage_saves_as_many_keystrokes_with_our_n_grams_as_we_say(tmp_path, seed):
    vocabulary = Vocabulary(words=(*SPECIAL, *WORDS))
    texts = [np.array([*vocabulary.encode(text), 3]) for text in people_talking(400, seed=1)]
    model = kneser_ney(texts, len(vocabulary), 3)
    text = " ".join(people_talking(30, seed))
    theirs = presage_counts(tmp_path, model, vocabulary, text)
    assert our_counts(model, vocabulary, text) == theirs
    assert our_counts(model, vocabulary, text, OFFERED - 1) != theirs
