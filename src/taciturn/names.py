"""Names that recipes, commands and the objects behind them share, each list written once.

This module imports nothing, so that `--help` is quick.
"""

from typing import Literal

AlgorithmName = Literal["dp-fedavg", "dp-fedsgd", "dp-ftrl", "fedavg", "transfer-learning"]
# What each of them is: privacy/schemes.py.
SchemeName = Literal["poisson", "fixed", "min-separation", "cyclic-poisson"]
FleetKind = Literal["simulated", "check-in", "queue", "devices"]
# How noise is correlated over rounds; what each of them is: privacy/noise/registry.py.
NoiseName = Literal["independent", "tree", "honaker", "banded", "blt"]
# The rows of a plan. A scheme that is not named claims no sampling: it is min-separation.
MechanismName = Literal["poisson", "cyclic-poisson", NoiseName]
Clipping = Literal["flat", "per-layer", "adaptive"]
ReportEncoding = Literal["integer", "modular"]
AccountantName = Literal["pld", "rdp", "moments"]
ServerOptimizer = Literal["sgd", "momentum", "nesterov", "adam"]
# The type of a model's matrix products.
Precision = Literal["float32", "mixed"]
# How n-grams estimate what they have not seen.
Smoothing = Literal["kneser-ney", "katz"]
ExportFormat = Literal["model", "onnx", "onnx-int8", "arpa", "combined", "dict", "phone", "js"]
