"""Optuna's Gaussian process. Slow to ask, so it pays where a measurement takes long; needs the extra `search`."""

from __future__ import annotations

import warnings

import optuna

from mktune.search.optuna_study import STARTUP, OptunaSampler
from mktune.space import SearchSpace


class GpSampler(OptunaSampler):
    """See the module. Questions that not every plan so far was asked are answered by chance."""

    def __init__(self, space: SearchSpace, seed: int) -> None:
        import torch  # heavy, and in the extra only

        torch.set_num_threads(1)  # matrices of a few hundred rows: threads cost more than they do
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            estimator = optuna.samplers.GPSampler(n_startup_trials=STARTUP, seed=seed)
        super().__init__(space, seed, estimator)


SAMPLER = GpSampler
