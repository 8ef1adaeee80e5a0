"""Which of Optuna's samplers proposes the next point, and which packages it stands on.

A new one is made for every proposal: it draws with the sweep's seed and the number of the proposal,
so that what it proposes follows from the journal alone, whether the sweep was interrupted or not.
"""

import contextlib
import importlib
import logging
import random
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from groundup.errors import MissingExtraError
from groundup.experiments.spec import SweepConfig, takes_whole_numbers

if TYPE_CHECKING:
    import optuna

VARIANT = "variant"

NUM_RANDOM = 10
"""With tpe and gp, how many points are random before there is something to learn from."""

# What the optional packages of Optuna's samplers are; torch is always there.
_PACKAGES = {"gp": ("scipy",), "cmaes": ("cmaes",), "qmc": ("scipy",)}


def import_packages(sampler: str) -> Any:
    """Optuna, once all that the sampler needs is there; else an error that names what is not."""
    for package in ("optuna", *_PACKAGES.get(sampler, ())):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise MissingExtraError(f"sampler {sampler} (package {package})", "sweep") from error
    optuna = importlib.import_module("optuna")
    importlib.import_module("optuna.storages.journal")
    logging.getLogger("optuna").setLevel(logging.WARNING)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # It advises a package that saves a moment for each proposal.
    logging.getLogger("optuna._gp.batched_lbfgsb").setLevel(logging.ERROR)
    return optuna


def find_distributions(spec: SweepConfig) -> "dict[str, optuna.distributions.BaseDistribution]":
    """Everything that varies, by its name: the variant, the choices of the grid, the ranges."""
    import optuna.distributions as kinds

    found: dict[str, kinds.BaseDistribution] = {}
    if spec.variants:
        found[VARIANT] = kinds.CategoricalDistribution(list(spec.variants))
    for name, choices in spec.grid.items():
        found[name] = kinds.CategoricalDistribution(choices)
    for name, range_ in spec.ranges.items():
        is_log = range_.scale == "log"
        if takes_whole_numbers(name):
            low, high = round(range_.low), round(range_.high)
            found[name] = kinds.IntDistribution(low, high, log=is_log)
        else:
            found[name] = kinds.FloatDistribution(range_.low, range_.high, log=is_log)
    return found


def make_proposer(spec: SweepConfig, number: int) -> "optuna.samplers.BaseSampler":
    """The sampler that the sweep names, for the proposal of this number."""
    from optuna import samplers

    seed = random.Random(f"{spec.sampler_seed}/{number}").getrandbits(32)
    with without_experimental_warnings():
        if spec.sampler == "cmaes":
            from groundup.experiments.covariance_sampler import CovarianceSampler

            return CovarianceSampler(find_distributions(spec), seed)
        if spec.sampler == "gp":
            return samplers.GPSampler(
                seed=seed, n_startup_trials=NUM_RANDOM, warn_independent_sampling=False
            )
        if spec.sampler == "qmc":
            # All proposals are places of one sequence, which the sweep's own seed scrambles.
            return samplers.QMCSampler(
                scramble=True,
                seed=spec.sampler_seed,
                independent_sampler=samplers.RandomSampler(seed=seed),
                warn_independent_sampling=False,
            )
        # To lie that points under way will be bad keeps jobs at the same time apart.
        return samplers.TPESampler(seed=seed, n_startup_trials=NUM_RANDOM, constant_liar=True)


@contextlib.contextmanager
def without_experimental_warnings() -> Iterator[None]:
    """What Optuna may still change is no news for whoever runs a sweep."""
    from optuna.exceptions import ExperimentalWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield
