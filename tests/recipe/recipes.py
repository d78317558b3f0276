"""Recipes that are right, to be changed by the tests of this folder."""

GOOD = {
    "data": {"population": "somewhere"},
    "participation": {"users": 1000, "cohort": 100},
    "privacy": {"noise_multiplier": 1.0},
    "run": {"rounds": 10},
}

FTRL = {
    "algorithm": "dp-ftrl",
    "participation": {"kind": "min-separation", "cohort": 10, "min_separation": 4},
}


def changed(**sections):
    content = {section: dict(values) for section, values in GOOD.items()}
    for section, values in sections.items():
        if isinstance(values, dict):
            content.setdefault(section, {}).update(values)
        else:
            content[section] = values
    return content
