"""Search: ask for plans, measure them, remember them, promote the best.

driver      `tune`, and `work` beside it
loop        the trials of one study; `op_stage`: of each op alone before it
benches     the GPUs that measure at once
proposals   valid and new plans, made ahead on a thread; `neighbours`: known plans, which come first
samplers/   one file per sampler; `effects` and `optuna_study` are what some are made of
budget      trials and seconds
stopping    Ctrl-C and SIGTERM
result      what is told meanwhile and in the end

record      measures a whole part of a space, for `comparison` to replay samplers on
matrix      what each shape's winner costs at the shapes beside it
export      studies as Optuna keeps them, in `optuna_export`
"""

from mktune.search.budget import Budget
from mktune.search.driver import tune, work
from mktune.search.proposals import require_a_plan
from mktune.search.result import Observer, Progress, TuneResult
from mktune.search.samplers.base import DEFAULT as DEFAULT_SAMPLER
from mktune.search.samplers.base import check_sampler, sampler_names
from mktune.search.stopping import Stop

__all__ = [
    "DEFAULT_SAMPLER",
    "Budget",
    "Observer",
    "Progress",
    "Stop",
    "TuneResult",
    "check_sampler",
    "require_a_plan",
    "sampler_names",
    "tune",
    "work",
]
