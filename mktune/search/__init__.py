"""Search: ask for plans, measure them, remember them, promote the best.

driver      `tune`, and `work` beside it
loop        the trials of one study
benches     the GPUs that measure at once
proposals   valid and new plans, made ahead on a thread
samplers/   one file per sampler
budget      trials and seconds
stopping    Ctrl-C and SIGTERM
result      what is told meanwhile and in the end
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
