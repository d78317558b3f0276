"""What a run measured on its way: a row for every evaluation, in metrics.jsonl and metrics.csv."""

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

from taciturn.files import write_atomically


class Metrics:
    """metrics.jsonl and metrics.csv; rows of rounds that a crash undid are dropped when the run goes on."""

    def __init__(self, folder: Path, round: int) -> None:
        self.folder = folder
        path = folder / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        self.rows = [row for row in map(_row_from_json, lines) if row["round"] <= round]

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        write_atomically(self.folder / "metrics.jsonl", "".join(map(_row_to_json, self.rows)).encode())
        table = io.StringIO()
        writer = csv.DictWriter(table, list(row))
        writer.writeheader()
        writer.writerows(self.rows)
        write_atomically(self.folder / "metrics.csv", table.getvalue().encode())


def _row_to_json(row: dict[str, Any]) -> str:
    """JSON knows no infinity."""
    return json.dumps({name: "infinity" if value == math.inf else value for name, value in row.items()}) + "\n"


def _row_from_json(line: str) -> dict[str, Any]:
    return {name: math.inf if value == "infinity" else value for name, value in json.loads(line).items()}
