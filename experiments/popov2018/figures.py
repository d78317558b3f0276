"""Popov et al. 2018, table by table and figure by figure: measured before there were lists of runs."""

from page import Item, Verdict, cannot, earlier

PAPER = "popov2018"
TITLE = "Popov et al. 2018: distributed fine-tuning of language models on private data"
ABOUT = """
Their model (2 × 650 LSTM, 30,000 words, 45.8M parameters) from Wikipedia to blogs, in place of Twitter: [figures and
commands](popov2018/README.md), one seed each, typed from runs of 2026-11-15 and not made of results as the rest of this page is.
"""


def items() -> list[Item]:
    return [
        earlier(
            PAPER,
            "Table 1",
            "rehearsal against learning without forgetting",
            "rehearsal best, at λ = ½: average perplexity 119.1",
            "rehearsal best, at λ = ½: 122.1",
            Verdict.HOLDS,
        ),
        earlier(
            PAPER,
            "Table 2",
            "averaging against transfer learning",
            "averaging better: 160.3 after a round, 107.5 after 300",
            "averaging better: 144.0 and 120.3",
            Verdict.HOLDS,
        ),
        earlier(PAPER, "Table 3", "what is uploaded", "174.43 MB a model, 1.70 GB a round", "174.7 MiB, 1.71 GiB", Verdict.HOLDS),
        earlier(
            PAPER,
            "Table 4",
            "several epochs against compressed gradients",
            "71.06 and 72.24, for 112 and 53,000 uploads",
            "76.6 and 89.7, for 60 and 39,840",
            Verdict.PART,
        ),
        earlier(
            PAPER,
            "Table 5",
            "tails of likelihood ratios, 20 pairs",
            "α from 14.4 to 20.9; the test passes for 19",
            "α from 11.7 to 43.9; 20",
            Verdict.HOLDS,
        ),
        earlier(
            PAPER,
            "Table 6",
            "ε of these tails at three δ, an estimate",
            "0.67, 0.83, 0.99",
            "0.58, 0.78, 0.98; of models without any guarantee, so that it is none",
            Verdict.PART,
        ),
        cannot("Figure 1", "the approach, drawn", "", "a drawing, no result"),
        earlier(
            PAPER,
            "Figure 2",
            "perplexities over rounds",
            "users' falls; without rehearsal the general one rises",
            "the same",
            Verdict.HOLDS,
        ),
        earlier(PAPER, "Figure 3", "the tail of one likelihood ratio", "falls as a Pareto tail", "the same", Verdict.HOLDS),
    ]
