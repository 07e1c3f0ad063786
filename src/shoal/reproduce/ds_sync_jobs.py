"""DS-Sync's jobs: what the paper reports of each, and which model learns in its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shoal.reproduce.learning import Learnt


@dataclass(frozen=True, slots=True)
class Job:
    """One of the paper's jobs, and the model that learns in its place."""

    name: str
    paper: str
    """BSP and DS-Sync among four workers, as the paper's repository has them."""
    differs: str
    learnt: Learnt
    """With 4 workers."""
    steps_of_16: int
    """Of each of 16 workers, whose steps see four times as many samples."""
    lower_is_better: bool = False

    @property
    def file(self) -> str:
        """The file with its clock."""
        return f"ds-sync-{self.name}.toml"


JOBS: Final = (
    Job(
        "wrn",
        "90.00 % (1.69) / 91.63 % (0.76)",
        "WRN-10-1 on digits for WRN-26-10 on CIFAR-10; 32 samples per worker for 256",
        Learnt("digits", "wrn:10-1", 0.97, 100, 0.5, 359, until_target=False),
        50,
    ),
    Job(
        "bert",
        "F1 93.06 (0.22) / 93.01 (0.26)",
        "a character transformer from nothing, nats per byte, for BERT-Large fine-tuned on SQuAD",
        Learnt("text-stdlib", "char-gpt:1x32", 2.6, 120, 0.5, 128, until_target=False),
        90,
        lower_is_better=True,
    ),
    Job(
        "deepfm",
        "AUC 80.51 (0.03) / 80.50 (0.02)",
        "DeepFM of 92 thousand parameters on flights for 11 million on Criteo",
        Learnt("flights", "deepfm", 0.70, 600, 0.5, 4000, until_target=False),
        300,
    ),
)
