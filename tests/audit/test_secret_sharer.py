"""What a model knows by heart is found, what it does not know is not, and both by the paper's
rules.
"""

import json
import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from harness import mostly_slow
from taciturn.audit import secret_sharer
from taciturn.audit.canaries import (
    Canary,
    canary_words,
    count_copies_read,
    expected_sightings,
    load_canaries,
    make_canaries,
    save_canaries,
    synthetic_users,
)
from taciturn.audit.secret_sharer import (
    Finding,
    beam_search,
    draw_references,
    measure,
    random_sampling,
    scorer,
)
from taciturn.core import BEGIN, END
from taciturn.data.layout import Layout, Sentences, Unrolls
from taciturn.data.public import PublicCorpus
from taciturn.data.vocabulary import SPECIAL, DataError, Vocabulary
from taciturn.models import losses
from taciturn.models.cells import cifg, gru, lstm
from taciturn.models.deep_lstm import deep_lstm
from taciturn.models.ngram import kneser_ney
from taciturn.models.registry import model_kind
from taciturn.models.stepping import Recurrent
from taciturn.models.transformer import transformer
from taciturn.recipe.sections import CanarySection

VOCABULARY = Vocabulary(words=(*SPECIAL, ".", "!", *(f"word{index}" for index in range(24))))
SIZE, WORDS = len(VOCABULARY), canary_words(VOCABULARY)
EVERYTHING = np.stack(np.meshgrid(WORDS, WORDS, WORDS, indexing="ij"), axis=-1).reshape(-1, 3)
MODELS = {
    "lstm": lstm(SIZE, 8, 12),
    "cifg": cifg(SIZE, 8, 12),
    "gru": gru(SIZE, 8, 12),
    "transformer": transformer(SIZE, 8, layers=1, heads=2),
    "deep lstm": deep_lstm(SIZE, 8, 12),
}
SECRET = Canary((9, 17, 25, 11, 8), users=4, copies=14)
MORE_MEMORY = 2**26


@cache
def untrained(name: str):
    return jax.tree.map(lambda leaf: 3 * leaf, MODELS[name].init(jax.random.key(1)))


@cache  # and with it what was compiled
def untrained_model(name: str):
    return stepping(name, untrained(name))


def stepping(name: str, params, restarts=()):
    kind = "deep-lstm" if name.startswith("deep") else name.split()[0]
    return model_kind(kind).stepper(MODELS[name], params, restarts)


class WordByWord:
    """A model of which nothing is known but that it is a `WordModel`."""

    def __init__(self, model) -> None:
        self.vocabulary, self.start, self.read, self.scores = (
            model.vocabulary,
            model.start,
            model.read,
            model.scores,
        )


@cache
def all_words(name: str):
    return jax.jit(
        lambda params, texts: jax.nn.log_softmax(losses.logits(MODELS[name], params, texts))
    )


def by_brute_force(name: str, params, prefix, continuations) -> np.ndarray:
    """Log-probabilities of the three last words of whole texts."""
    texts = np.array([[BEGIN, *prefix, *one] for one in continuations])
    scores = np.asarray(all_words(name)(params, texts[:, :-1]), np.float64)
    return sum(scores[np.arange(len(texts)), place, texts[:, place + 1]] for place in (2, 3, 4))


def assert_rank(rank: int, scores: np.ndarray, own: float) -> None:
    """Up to those that float32 cannot tell from the canary's."""
    assert (
        1 + np.count_nonzero(scores > own + 1e-4) <= rank <= np.count_nonzero(scores > own - 1e-4)
    )


def corpus() -> PublicCorpus:
    generator = np.random.default_rng(5)
    texts = [
        " ".join(
            f"{' '.join(VOCABULARY.words[word] for word in generator.choice(WORDS, 7))}."
            for _ in range(4)
        )
        for _ in range(30)
    ]
    return PublicCorpus.of([*texts, "word1 word2!", "word3"], VOCABULARY, "made up")


# Canaries


def test_canaries_are_the_papers():
    canaries = make_canaries(VOCABULARY, seed=1)
    assert len(canaries) == 27
    assert sum(canary.users for canary in canaries) == 189
    assert {(one.users, one.copies) for one in canaries} == {
        (u, e) for u in (1, 4, 16) for e in (1, 14, 200)
    }
    assert set(np.ravel([canary.words for canary in canaries])) <= set(WORDS.tolist())
    assert all(len(canary.prefix) == 2 and len(canary.continuation) == 3 for canary in canaries)
    assert canaries == make_canaries(VOCABULARY, seed=1)
    assert not {one.words for one in canaries} & {
        one.words for one in make_canaries(VOCABULARY, seed=2)
    }


def test_references_are_not_the_canaries_over_again():
    drawn = draw_references(WORDS, 1000, seed=1).ravel().tolist()
    words = np.ravel([canary.words for canary in make_canaries(VOCABULARY, seed=1)]).tolist()
    assert drawn[: len(words)] != words
    assert set(drawn) == set(WORDS.tolist())


def test_each_sharer_has_the_copies_among_two_hundred_sentences():
    cut = Sentences(9, VOCABULARY.sentence_ends)
    public = {tuple(row[:8]) for document in corpus().documents for row in cut.pieces(document)}
    users = synthetic_users(
        make_canaries(VOCABULARY, 1, CanarySection(users=[1, 3], per_cell=1)), corpus(), seed=1
    )
    assert len(users) == 3 * (1 + 3)
    for user in users:
        sentences = cut.pieces(user.tokens)
        is_canary = np.all(sentences == [BEGIN, *user.canary.words, END, 0, 0, 0], axis=1)
        assert (
            len(sentences) == 200 == np.count_nonzero(user.tokens == END)
        )  # each a message of its own
        assert is_canary.sum() == user.canary.copies == count_copies_read(user)
        assert {tuple(row[:8]) for row in sentences[~is_canary]} <= public
    assert len({user.tokens.tobytes() for user in users if user.canary.copies < 200}) == 2 * (1 + 3)


def test_a_user_has_no_room_for_more_copies_than_sentences():
    with pytest.raises(ValueError, match="cannot have more copies"):
        synthetic_users([SECRET], corpus(), seed=1, sentences=SECRET.copies - 1)


def test_table_3():
    """A synthetic device takes part 1,150 times in 2,000 rounds: rate × rounds × n_u × n_e."""
    printed = {
        1: {1: 1_150, 14: 16_100, 200: 230_000},
        4: {1: 4_600, 14: 64_400, 200: 920_000},
        16: {1: 18_400, 14: 257_600, 200: 3_680_000},
    }
    users = synthetic_users(make_canaries(VOCABULARY, seed=1), corpus(), seed=1)
    sightings = expected_sightings(users, rate=1_150 / 2_000, rounds=2_000)
    assert len(sightings) == 27
    for canary, expected in sightings.items():
        assert expected == pytest.approx(printed[canary.users][canary.copies])


def test_copies_that_a_device_does_not_read_are_not_counted():
    users = synthetic_users(
        [Canary(SECRET.words, 2, 200), Canary((10, 10, 7, 7, 9), 1, 14)], corpus(), seed=1
    )
    always = Canary(SECRET.words, 2, 200)
    forty = Layout.for_pieces(Sentences(20, VOCABULARY.sentence_ends), batch_size=10, pieces=40)
    assert expected_sightings(users, 0.5, 10, forty)[always] == 0.5 * 10 * 2 * 40
    tokens = Layout.for_pieces(
        Unrolls(10), batch_size=3, pieces=12
    )  # 120 tokens, of sentences of six
    assert expected_sightings(users, 0.5, 10, tokens)[always] == 0.5 * 10 * 2 * 20
    assert count_copies_read(users[-1], tokens) < 14 == count_copies_read(users[-1])


def test_canaries_keep(tmp_path):
    canaries = make_canaries(VOCABULARY, seed=1)
    seen = dict(zip(canaries, range(len(canaries)), strict=True))
    save_canaries(tmp_path / "canaries.json", seen, VOCABULARY)
    assert load_canaries(tmp_path / "canaries.json", VOCABULARY) == seen
    reordered = Vocabulary(words=(*VOCABULARY.words[:6], *VOCABULARY.words[:5:-1]))
    spelled = [
        [reordered.words[word] for word in one.words]
        for one in load_canaries(tmp_path / "canaries.json", reordered)
    ]
    assert spelled == [[VOCABULARY.words[word] for word in one.words] for one in canaries]
    with pytest.raises(DataError, match="another vocabulary"):
        load_canaries(tmp_path / "canaries.json", Vocabulary(words=(*SPECIAL, "hello")))


WHOLE = {"words": ["a"] * 5, "users": 1, "copies": 1, "seen": 1.0}


@pytest.mark.parametrize(
    "content",
    [
        {"words": 1},
        5,
        [WHOLE | {"words": 5}],
        [WHOLE | {"words": None}],
        [WHOLE | {"words": [["a"]] * 5}],
        [WHOLE | {"words": [1, "a", "a", "a", "a"]}],
        [WHOLE | {"words": ["a"]}],
        [WHOLE | {"users": "many"}],
        [WHOLE | {"copies": None}],
        [WHOLE | {"seen": []}],
        [None],
        ["words"],
    ],
)
def test_damaged_rows_of_canaries_are_refused_in_a_sentence(tmp_path, content):
    (tmp_path / "canaries.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="is not a list of canaries, or is damaged"):
        load_canaries(tmp_path / "canaries.json", VOCABULARY)


def test_a_file_without_canaries_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "canaries.json").write_text("[]")
    with pytest.raises(DataError, match="has no canaries"):
        load_canaries(tmp_path / "canaries.json", VOCABULARY)


# Random sampling


@pytest.mark.parametrize("name", mostly_slow(MODELS, "cifg", "transformer"))
def test_a_rank_is_what_trying_every_continuation_gives(name):
    params = untrained(name)
    canaries = [SECRET, Canary((9, 17, 12, 12, 7), 1, 1), Canary((20, 6, 25, 11, 8), 1, 1)]
    for canary, rank in zip(
        canaries, random_sampling(untrained_model(name), canaries, EVERYTHING), strict=True
    ):
        scores = by_brute_force(name, params, canary.prefix, EVERYTHING)
        assert_rank(rank, scores, scores[np.all(canary.continuation == EVERYTHING, axis=1)][0])


def test_a_rank_among_counted_n_grams():
    texts = [
        np.array([*SECRET.words, END, 9, 17, 25, 8, 8, END]),
        np.random.default_rng(0).choice(WORDS, 300),
    ]
    model = kneser_ney(texts, SIZE, order=3)

    def score(words) -> float:
        state, total = model.start(), 0.0
        for place, word in enumerate((*SECRET.prefix, *words)):
            total += model.scores(state)[word] if place >= 2 else 0.0
            state = model.read(state, word)
        return total

    scores = np.array([score(words) for words in EVERYTHING.tolist()])
    (rank,) = random_sampling(model, [SECRET], EVERYTHING)
    assert_rank(rank, scores, score(SECRET.continuation))
    assert rank <= 4


@pytest.mark.parametrize("name", ["cifg", "transformer"])
def test_the_fast_and_the_general_way_agree(name):
    model, some = untrained_model(name), draw_references(WORDS, 150, seed=3)
    np.testing.assert_allclose(
        scorer(model, some)(SECRET.prefix),
        scorer(WordByWord(model), some)(SECRET.prefix),
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize("name", ["cifg", "transformer"])
def test_blocks_of_another_size_give_the_same(name):
    model, some = untrained_model(name), draw_references(WORDS, 150, seed=3)
    scores = scorer(model, some, MORE_MEMORY)(SECRET.prefix)
    np.testing.assert_allclose(
        scorer(model, some, 2**13)(SECRET.prefix), scores, rtol=1e-5, atol=1e-5
    )
    assert not np.allclose(scorer(model, some, MORE_MEMORY)((20, 6)), scores, atol=1e-2)


def test_scoring_takes_the_memory_that_it_may_take_and_no_more():
    references = draw_references(np.arange(20, 2_000, dtype=np.int32), 20_000, seed=3)
    model = model_kind("cifg").stepper(wide := cifg(2_000, 8, 12), wide.init(jax.random.key(0)), ())
    states = 4 * 2_000 * (8 + 12 + 1)
    assert temporary_memory(model, references, 2**20) < 2**20 + 2 * states
    assert (
        temporary_memory(model, references, 2**24) > 2**20 + 2 * states
    )  # the twin: where it may take more, it does


def temporary_memory(model: Recurrent, references: np.ndarray, memory: int) -> int:
    """What the compiled program takes, besides what goes in and comes out."""
    compiled = []
    whole = secret_sharer._score_blocks

    def compile_only(**arguments):
        compiled.append(whole.lower(**arguments).compile().memory_analysis().temp_size_in_bytes)
        return np.zeros(arguments["blocks"].shape[:2])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secret_sharer, "_score_blocks", compile_only)
        scorer(model, references, memory)(SECRET.prefix)
    return compiled[0]


def distance_from_uniform(ranks: list[int], references: int) -> float:
    """Kolmogorov and Smirnov's, times √n."""
    shares, count = (np.sort(ranks) - 0.5) / (references + 1), len(ranks)
    steps = np.arange(count + 1) / count
    return math.sqrt(count) * max((steps[1:] - shares).max(), (shares - steps[:-1]).max())


def test_an_untrained_model_ranks_canaries_anywhere():
    model, references = untrained_model("cifg"), draw_references(WORDS, 2_000, seed=3)
    canaries = make_canaries(VOCABULARY, 1, CanarySection(users=[1], copies=[1], per_cell=120))
    assert distance_from_uniform(random_sampling(model, canaries, references), 2_000) < 1.36  # 5 %
    # The twin that must fail: canaries that the model would have come up with itself.
    likely = [
        Canary((*one.prefix, *beam_search(model, one.prefix, WORDS)[4]), 1, 1) for one in canaries
    ]
    assert distance_from_uniform(random_sampling(model, likely, references), 2_000) > 1.95  # 0.1 %


def test_ties_come_before_the_same_does_not_count_and_a_broken_model_knows_nothing():
    class Alike:
        vocabulary = SIZE

        def start(self):
            return ()

        def read(self, state, word):
            return ()

        def scores(self, state):
            return np.full(SIZE, -math.log(SIZE), np.float32)

    references = np.concatenate([EVERYTHING[:50], [SECRET.continuation] * 10])
    assert random_sampling(Alike(), [SECRET], references) == [51]
    broken = stepping("cifg", jax.tree.map(lambda leaf: leaf * math.nan, untrained("cifg")))
    assert random_sampling(WordByWord(broken), [SECRET], references) == [51]


# Both attacks


def trained(name: str, sentence: tuple[int, ...]):
    """On one sentence among others, until it knows that one by heart."""
    others = np.random.default_rng(2).choice(WORDS, (8, 5))
    rows = np.array([[BEGIN, *words, END] for words in (sentence, sentence, *others)], np.int32)
    optimizer = optax.adam(0.03)

    def step(_, training):
        params, state = training
        updates, state = optimizer.update(
            jax.grad(lambda params: losses.cross_entropy(MODELS[name], params, rows))(params), state
        )
        return optax.apply_updates(params, updates), state

    params = MODELS[name].init(jax.random.key(0))
    return jax.jit(
        lambda params: jax.lax.fori_loop(0, 300, step, (params, optimizer.init(params)))[0]
    )(params)


@pytest.mark.parametrize("name", ["cifg", "transformer"])
def test_a_model_that_was_taught_a_canary_gives_it_away_and_no_other(name):
    model = stepping(name, trained(name, SECRET.words), restarts=VOCABULARY.sentence_ends)
    others = make_canaries(VOCABULARY, 4, CanarySection(users=[1], copies=[1], per_cell=6))
    found, *not_found = measure(model, VOCABULARY, [SECRET, *others], references=4_000)
    assert found == Finding(canary=SECRET, rank=1, references=4_000, place=1)
    assert found.exposure == pytest.approx(math.log2(4_001))
    assert all(one.rank > 20 and one.place is None for one in not_found)
    assert all(one.exposure < math.log2(4_001 / 20) for one in not_found)


def test_of_two_million_the_largest_exposure_is_21_bits():
    first = Finding(canary=SECRET, rank=1, references=2_000_000, place=1)
    last = Finding(canary=SECRET, rank=2_000_001, references=2_000_000, place=None)
    assert first.exposure == pytest.approx(20.93, abs=0.005)
    assert last.exposure == 0.0


def test_a_beam_as_wide_as_all_words_finds_the_best_of_all():
    params = untrained("gru")
    model, scores = untrained_model("gru"), by_brute_force("gru", params, SECRET.prefix, EVERYTHING)
    best = [tuple(EVERYTHING[place].tolist()) for place in np.argsort(-scores)[:3]]
    assert beam_search(model, SECRET.prefix, WORDS, width=24**2)[:3] == best
    assert len(beam_search(model, SECRET.prefix, WORDS)) == 5
    # Without being asked for signs it says none, though the model likes one best.
    loud = params | {"word_bias": jnp.zeros(SIZE).at[4].set(50.0)}
    assert set(np.ravel(beam_search(stepping("gru", loud), SECRET.prefix, WORDS))) <= set(
        WORDS.tolist()
    )


def test_a_model_is_asked_about_its_own_words():
    with pytest.raises(DataError, match="knows 30 words"):
        measure(untrained_model("gru"), Vocabulary(words=(*SPECIAL, "hello")), [SECRET])
