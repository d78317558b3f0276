"""Names that recipes, commands and the objects behind them share, each list written once. Imports
nothing, so that `--help` is quick.
"""

from typing import Literal

AlgorithmName = Literal["dp-fedavg", "dp-fedsgd", "dp-ftrl", "fedavg", "transfer-learning"]
ParticipationKind = Literal["poisson", "fixed", "min-separation", "cyclic-poisson"]
FleetKind = Literal["simulated", "check-in", "queue", "devices"]
# how it is correlated over rounds
NoiseKind = Literal["independent", "tree", "honaker", "banded", "blt"]
# of a plan; without a sampling, min-separation
MechanismName = Literal["poisson", "cyclic-poisson", NoiseKind]
Clipping = Literal["flat", "per-layer", "adaptive"]
ReportEncoding = Literal["integer", "modular"]
AccountantName = Literal["pld", "rdp", "moments"]
ServerOptimizer = Literal["sgd", "momentum", "nesterov", "adam"]
# of matrix products
Precision = Literal["float32", "mixed"]
# of n-grams
Smoothing = Literal["kneser-ney", "katz"]
ExportFormat = Literal["model", "onnx", "onnx-int8", "arpa", "combined", "js"]
