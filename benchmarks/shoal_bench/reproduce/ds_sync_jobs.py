"""DS-Sync's jobs: what the paper reports of each, and which model learns in its place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from shoal_bench.reproduce.learning import CIFAR10, Learnt, choose_data, data_words


@dataclass(frozen=True, slots=True)
class PaperJob:
    """One of the paper's jobs, and the model that learns in its place."""

    name: str
    paper: str
    """BSP and DS-Sync among four workers, as the paper's repository has them."""
    differs: str
    learnt: Learnt
    """What 4 workers learnt."""
    steps_of_16: int
    """The steps of each of 16 workers, which see four times as many samples in a step."""
    lower_is_better: bool = False

    @property
    def file(self) -> str:
        """The file with its clock."""
        return f"ds-sync-{self.name}.toml"


_WRN: Final = "WRN-10-1 on {} for WRN-26-10 on CIFAR-10; 32 samples per worker for 256"

JOBS: Final = (
    PaperJob(
        "wrn",
        "90.00 % (1.69) / 91.63 % (0.76)",
        _WRN.format("digits"),
        Learnt("digits", "wrn:10-1", 0.97, 100, 0.5, 359, until_target=False),
        50,
    ),
    PaperJob(
        "bert",
        "F1 93.06 (0.22) / 93.01 (0.26)",
        "a character transformer from nothing, nats per byte, for BERT-Large fine-tuned on SQuAD",
        Learnt("text-stdlib", "char-gpt:1x32", 2.6, 120, 0.5, 128, until_target=False),
        90,
        lower_is_better=True,
    ),
    PaperJob(
        "deepfm",
        "AUC 80.51 (0.03) / 80.50 (0.02)",
        "DeepFM of 92 thousand parameters on flights for 11 million on Criteo",
        Learnt("flights", "deepfm", 0.70, 600, 0.5, 4000, until_target=False),
        300,
    ),
)

_WRN_ON: Final = {
    "fashion-mnist": (
        Learnt("fashion-mnist", "wrn:10-1", 0.75, 300, 0.05, 1000, until_target=False),
        150,
    ),
    **{
        name: (Learnt(name, "wrn:10-1", 0.40, 300, 0.05, 1000, until_target=False), 150)
        for name in CIFAR10
    },
}
"""What WRN learns on other data than digits, and the steps of each of 16 workers."""


def jobs_on(asked: str | None, *, quick: bool) -> tuple[PaperJob, ...]:
    """Return the jobs; WRN learns on the data set `asked` for, or on the paper's if it is here.

    `quick`: on digits. Raises `UsageError` for a data set that there is no model for.
    """
    dataset = choose_data(asked, ("digits",) if quick else (*CIFAR10, "digits"))
    if dataset not in _WRN_ON:
        return JOBS
    learnt, steps_of_16 = _WRN_ON[dataset]
    differs = _WRN.format(data_words(dataset))
    wrn = replace(JOBS[0], learnt=learnt, steps_of_16=steps_of_16, differs=differs)
    return (wrn, *JOBS[1:])
