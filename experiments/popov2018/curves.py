"""Figure 2 of Popov et al. 2018: perplexity over rounds, on users' text and on general text.

python experiments/popov2018/curves.py "with rehearsal=runs/averaging/metrics.csv" "without=runs/forgetting/metrics.csv" --out curves.png
"""

import argparse
import csv

from matplotlib import pyplot

COLUMNS = {"perplexity": "users' text", "general_perplexity": "general text"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="NAME=METRICS.CSV")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained", sharex=True)
    for run in args.runs:
        name, _, path = run.partition("=")
        with open(path) as file:
            rows = list(csv.DictReader(file))
        for panel, column in zip(panels, COLUMNS, strict=True):
            panel.plot([int(row["round"]) for row in rows], [float(row[column]) for row in rows], marker="o", ms=2.5, label=name)
    for panel, title in zip(panels, COLUMNS.values(), strict=True):
        panel.set(xlabel="round", ylabel="perplexity")
        panel.set_title(title, loc="left", fontsize=10)
        panel.grid(alpha=0.25, lw=0.5)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False)
    figure.savefig(args.out, dpi=130)


if __name__ == "__main__":
    main()
