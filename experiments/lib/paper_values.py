"""What the papers print. The tests of our accounting hold it against these figures, and the page
shows them beside ours.
"""

from typing import NamedTuple

# McMahan et al. 2018, Table 1, both versions: (users, users a round, noise multiplier) → ε after 1,
# 10, …, 10⁶ rounds at δ = K^−1.1.
MCMAHAN_TABLE_1 = {
    (1e5, 1e2, 1.0): (0.97, 0.98, 1.00, 1.07, 1.18, 2.21, 7.50),
    (1e6, 1e1, 1.0): (0.68, 0.69, 0.69, 0.69, 0.69, 0.72, 0.73),
    (1e6, 1e2, 1.0): (0.85, 0.85, 0.89, 0.89, 0.90, 0.93, 1.10),
    (1e6, 1e3, 1.0): (1.17, 1.17, 1.20, 1.28, 1.39, 2.44, 8.13),
    (1e6, 1e4, 1.0): (1.73, 1.92, 2.08, 3.06, 8.49, 32.38, 187.01),
    (1e6, 1e3, 3.0): (0.47, 0.47, 0.48, 0.48, 0.49, 0.67, 1.95),
    (1e7, 1e3, 1.0): (0.99, 1.00, 1.04, 1.04, 1.05, 1.08, 1.25),
    (1e8, 1e3, 1.0): (0.90, 0.92, 0.92, 0.92, 0.92, 0.96, 0.97),
    (1e9, 1e3, 1.0): (0.84, 0.84, 0.84, 0.85, 0.88, 0.88, 0.88),
}
# Table 2, at δ = 1e-9, z = 1, 5,000 rounds: (σ, S, users, users a round) → ε, AccuracyTop1.
MCMAHAN_TABLE_2 = {
    (0.003, 15, 763_430, 5000): (4.634, 0.1749),
    (0.006, 10, 763_430, 1667): (2.314, 0.1704),
    (0.012, 15, 763_430, 1250): (2.038, 0.1633),
    (0.003, 15, 1e8, 5000): (1.152, 0.1749),
    (0.006, 10, 1e8, 1667): (0.991, 0.1704),
    (0.012, 15, 1e8, 1250): (0.987, 0.1633),
}
# AccuracyTop1 of S = ∞.
MCMAHAN_NO_NOISE = 0.1762
# In the text: (users, users a round, rounds, δ) → ε; δ = 1e-6 only in the version of 2017.
MCMAHAN_TEXT = {
    (763_430, 1250, 3000, 1e-9): 1.97,
    (763_430, 1250, 3000, 1e-6): 1.35,
    (763_430, 5000, 3000, 1e-9): 3.81,
    (763_430, 5000, 20000, 1e-9): 8.92,
    (763_430, 5000, 4980, 1e-9): 4.6,
    (1e8, 5000, 4980, 1e-9): 1.2,
}

# Ramaswamy et al. 2020. Table 5: users → ε at δ = N^−1.1, of 2,000 rounds of 20,000.
RAMASWAMY_TABLE_5 = {
    2_000_000: 9.86,
    3_000_000: 6.73,
    4_000_000: 5.36,
    5_000_000: 4.54,
    10_000_000: 3.27,
}
RAMASWAMY_SIGMA = 3.2e-5
RAMASWAMY_COHORT = 20_000
RAMASWAMY_ROUNDS = 2_000
RAMASWAMY_CLIP_NORM = 0.8
# Table 3: (n_u, n_e) → how often a canary is met. Table 4: its ranks among 2,000,000, and how many
# of three a beam search finds.
RAMASWAMY_TABLE_3 = {
    (1, 1): 1_150,
    (1, 14): 16_100,
    (1, 200): 230_000,
    (4, 1): 4_600,
    (4, 14): 64_400,
    (4, 200): 920_000,
    (16, 1): 18_400,
    (16, 14): 257_600,
    (16, 200): 3_680_000,
}
RAMASWAMY_TABLE_4 = {
    (1, 1): ((637_000, 1_550_000, 1_600_000), 0),
    (1, 14): ((1_600, 41_000, 542_000), 0),
    (1, 200): ((270_000, 347_000, 894_000), 0),
    (4, 1): ((281_000, 308_000, 1_370_000), 0),
    (4, 14): ((1, 16, 762), 1),
    (4, 200): ((263, 904, 4_900), 0),
    (16, 1): ((3_700, 112_000, 129_000), 0),
    (16, 14): ((1, 1, 1), 3),
    (16, 200): ((1, 1, 1), 3),
}
# Tables 6 to 8, Top-1 recall on Stack Overflow: server's optimiser, rate and momentum; client's
# batch and rate; clip norm.
RAMASWAMY_TABLE_6 = {
    ("adam", 1e-5, None): 0.0473,
    ("adam", 5e-5, None): 0.1549,
    ("adam", 1e-4, None): 0.1978,
    ("adam", 2e-4, None): 0.2192,
    ("adam", 5e-4, None): 0.2338,
    ("momentum", 0.5, 0.9): 0.2303,
    ("momentum", 1.0, 0.9): 0.2369,
    ("momentum", 0.5, 0.99): 0.2416,
    ("momentum", 1.0, 0.99): 0.2415,
    ("sgd", 0.5, None): 0.1849,
    ("sgd", 0.7, None): 0.1952,
    ("sgd", 1.0, None): 0.2041,
}
RAMASWAMY_TABLE_7 = {
    (5, 0.1): 0.2392,
    (5, 0.5): 0.2403,
    (10, 0.2): 0.2403,
    (10, 0.5): 0.2396,
    (20, 0.3): 0.2400,
    (20, 0.5): 0.2403,
    (50, 0.5): 0.2415,
}
RAMASWAMY_TABLE_8 = {
    0.1: 0.2378,
    0.2: 0.2397,
    0.5: 0.2409,
    0.8: 0.2415,
    1.0: 0.2412,
    1.5: 0.2381,
    2.0: 0.2345,
}

# Xu et al. 2023, Tables 1 and 2: rounds, MinS, MaxP, timer in hours, users in millions (None where
# not printed), ρ; z = 7, 6,500 a round.
XU_NOISE_MULTIPLIER = 7.0
XU_REPORT_GOAL = 6500


class XuModel(NamedTuple):
    """A model that they trained, with what bounds its privacy."""

    rounds: int
    min_separation: int
    max_participations: int
    timer_hours: int | None
    millions: float | None
    rho: float


# Positional, so that it reads as their tables do.
XU_MODELS: dict[str, XuModel] = {
    "NWP de-DE": XuModel(930, 212, 4, 48, 3.24, 0.48),
    "NWP en-GB": XuModel(980, 226, 4, 72, 2.38, 0.48),
    "NWP fr-FR": XuModel(1280, 180, 5, 72, 2.79, 0.89),
    "NWP it-IT": XuModel(1620, 303, 5, 72, 3.32, 0.71),
    "NWP pt-PT": XuModel(530, 54, 8, 48, 0.83, 1.86),
    "NWP es-ES": XuModel(1900, 526, 3, 144, 4.21, 0.35),
    "NWP es-ES, secure aggregation": XuModel(1750, 349, 4, 144, 4.21, 0.52),
    "NWP en-US": XuModel(2800, 371, 7, 48, 13.0, 1.31),
    "NWP en-US, secure aggregation": XuModel(1360, 622, 2, 144, 13.0, 0.25),
    "NWP pt-BR": XuModel(3600, 909, 3, 144, 16.6, 0.45),
    "NWP en-IN": XuModel(1290, 170, 6, 96, 7.72, 1.14),
    "NWP es-MX": XuModel(1980, 343, 5, 96, 9.96, 0.64),
    "NWP es-AR": XuModel(640, 90, 5, 96, 4.09, 0.84),
    "es-ES of 2022": XuModel(2000, 313, 6, None, None, 0.81),
    "OTF de-DE": XuModel(1170, 206, 5, 48, 3.24, 0.89),
    "OTF en-GB": XuModel(1220, 206, 5, 72, 2.38, 0.89),
    "OTF es-ES": XuModel(1280, 197, 5, 48, 4.21, 0.89),
    "OTF fr-FR": XuModel(1300, 290, 4, 72, 2.79, 0.61),
    "OTF it-IT": XuModel(1360, 188, 5, 48, 3.32, 0.89),
    "OTF ru-RU": XuModel(870, 327, 3, 48, 6.63, 0.32),
    "OTF pt-PT": XuModel(430, 54, 7, 48, 0.83, 0.99),
}
# Table 2 and the text: ρ → ε at δ = 1e-10.
XU_EPSILON = {
    0.89: 9.01,
    0.61: 7.31,
    0.32: 5.13,
    0.99: 9.56,
    0.25: 4.49,
    1.86: 13.69,
}

# Popov et al. 2018: perplexity of general text and of users', and the average that they print.
POPOV_START = (100.1, 336.0, 192.6)
POPOV_TABLE_1 = {
    "rehearsal-0.25": (121.3, 127.9, 124.8),
    "rehearsal-0.5": (131.1, 109.7, 119.1),
    "rehearsal-0.75": (149.0, 99.7, 119.9),
    "soft-0.25": (128.4, 162.8, 146.0),
    "soft-0.5": (147.0, 121.7, 132.7),
    "soft-0.75": (186.5, 101.1, 133.9),
    "alone": (265.1, 93.4, 150.8),
}
POPOV_TABLE_2 = {
    "generated-1": (109.2, 259.7, 174.4),
    "generated-5": (112.3, 246.0, 171.6),
    "real-1": (108.7, 261.2, 174.6),
    "averaged-1": (102.8, 233.8, 160.3),
    "rehearsal": (105.5, 109.3, 107.5),
}
POPOV_TABLE_6 = {1e-4: 0.67, 1e-5: 0.83, 1e-6: 0.99}
