"""Optuna's tree-structured Parzen estimator. See `search.optuna_study`."""

from __future__ import annotations

import optuna

from mktune.search.optuna_study import STARTUP, OptunaSampler
from mktune.space import SearchSpace


class TpeSampler(OptunaSampler):
    """See the module."""

    def __init__(self, space: SearchSpace, seed: int) -> None:
        estimator = optuna.samplers.TPESampler(n_startup_trials=STARTUP, multivariate=False, seed=seed)
        super().__init__(space, seed, estimator)


SAMPLER = TpeSampler
