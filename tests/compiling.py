"""How programs are compiled in tests: as for users, or in a quarter of the time. Processes that
tests start import this, and no more.
"""

import sys
from pathlib import Path

import jax
from jax._src import (
    compiler,
)  # private to JAX, which has no public way to set this for all programs: it may move

QUICKLY = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_parallel_codegen_split_count": 1,
}
if jax.__version_info__ < (0, 12):  # later ones have no other way
    QUICKLY["xla_cpu_use_fusion_emitters"] = False


optimised = compiler.get_compile_options


def quickly(*arguments, **settings):
    options = optimised(*arguments, **settings)
    options.env_option_overrides = [*options.env_option_overrides, *QUICKLY.items()]
    return options


def another_process(program: str) -> list[str]:
    """The command of a Python process that compiles as this one does, so that both share what was
    compiled.
    """
    if compiler.get_compile_options is quickly:
        tests = str(Path(__file__).parent)
        program = (
            f"import sys; sys.path.append({tests!r}); import compiling\n"
            f"compiling.compiler.get_compile_options = compiling.quickly\n{program}"
        )
    return [sys.executable, "-c", program]
