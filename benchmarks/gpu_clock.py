"""Holds the computing that scenarios assume for the papers' models against a GPU's.

    python benchmarks/gpu_clock.py --peak 66.9 [--json FILE]

`--peak` is the most that the card computes in float32 without tensor cores, in TFLOP/s, as its data
sheet says. Scenarios reckon with half of it, a third of a step for the forward pass, and layers
that take their share of the multiplications. Needs a CUDA GPU, torchvision and transformers.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
import torchvision
import transformers
from torch import Tensor, nn

from shoal.sim import FORWARD, architecture
from shoal.workloads import Dataset, DeepFM, InputKind, Task, make_model

ASSUMED_SHARE = 0.5
"""The share of the card's float32 rate that simulations assume."""
WARM_UP, STEPS = 5, 15
LOOKS = (0.25, 0.5, 0.9)
"""Shares of the bytes of all gradients."""


Loss = Callable[[nn.Module], Tensor]


@dataclass(frozen=True)
class Job:
    """A model of `architecture`'s name, and a batch as a scenario has it."""

    name: str
    batch: int
    model: Callable[[], nn.Module]
    loss_on: Callable[[int], Loss]
    """Makes a batch of so many samples on the GPU, and returns a model's loss on it."""


def pictures(side: int, classes: int) -> Callable[[int], Loss]:
    """Return random pictures to classify."""

    def batch_of(size: int) -> Loss:
        inputs = torch.randn(size, 3, side, side, device="cuda")
        targets = torch.randint(classes, (size,), device="cuda")

        def loss(model: nn.Module) -> Tensor:
            told = model(inputs)
            # Inception-v3 has an auxiliary classifier, which comes second
            told = tuple(told) if isinstance(told, tuple) else (told,)
            return torch.stack([nn.functional.cross_entropy(each, targets) for each in told]).sum()

        return loss

    return batch_of


def bert() -> nn.Module:
    """Return BERT-Large as it is fine-tuned on SQuAD: where does the answer begin and end."""
    config = transformers.BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    )
    return transformers.BertForQuestionAnswering(config)


def spans(size: int) -> Loss:
    """Return random sequences of 384 word pieces in which to find an answer."""
    ids = torch.randint(30_522, (size, 384), device="cuda")
    ends = torch.randint(384, (size,), device="cuda")
    return lambda model: model(input_ids=ids, start_positions=ends, end_positions=ends).loss


def deepfm() -> nn.Module:
    """Return it with Criteo's 39 fields, a million values, and three layers of 400."""
    model = DeepFM([1_000_000 // 39] * 39, 10)
    widths = [390, 400, 400, 400]
    layers = [m for a, b in pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())]
    model.mlp = nn.Sequential(*layers, nn.Linear(400, 1))
    return model


def clicks(size: int) -> Loss:
    """Return random values of Criteo's fields, of which to say whether they were clicked."""
    fields = torch.randint(1_000_000 // 39, (size, 39), device="cuda")
    targets = torch.rand(size, device="cuda")
    score = nn.functional.binary_cross_entropy_with_logits
    return lambda model: score(model(fields), targets)


def vgg16_cifar() -> nn.Module:
    """Return VGG-16's convolutions and one layer for 10 classes."""
    features = torchvision.models.vgg16().features
    return nn.Sequential(features, nn.Flatten(), nn.Linear(512, 10))


def wide_resnet() -> nn.Module:
    """Return the paper's WideResNet-26-10, which counts as 28 layers elsewhere."""
    pictures, targets = torch.zeros(1, 3, 32, 32), torch.zeros(1, dtype=torch.int64)
    cifar = Dataset(
        "cifar10", Task.CLASSIFICATION, InputKind.IMAGE, pictures, targets, pictures, targets, 10
    )
    return make_model("wrn:28-10", cifar, seed=1)


JOBS = (
    Job("resnet50", 32, torchvision.models.resnet50, pictures(224, 1000)),
    Job("vgg16", 32, torchvision.models.vgg16, pictures(224, 1000)),
    Job(
        "inception-v3",
        32,
        lambda: torchvision.models.inception_v3(init_weights=False),
        pictures(299, 1000),
    ),
    Job("vgg16-cifar", 128, vgg16_cifar, pictures(32, 10)),
    Job("wrn-26-10", 256, wide_resnet, pictures(32, 10)),
    Job("bert-large", 6, bert, spans),
    Job("deepfm", 20_480, deepfm, clicks),
)


@dataclass
class Step:
    """One step's events on the GPU."""

    begun: torch.cuda.Event
    forwarded: torch.cuda.Event
    done: torch.cuda.Event
    ready: list[tuple[torch.cuda.Event, int]]
    """The moment at which each gradient was complete, and its bytes."""


def event() -> torch.cuda.Event:
    """Return an event that has been recorded."""
    made = torch.cuda.Event(enable_timing=True)
    made.record()
    return made


def run(model: nn.Module, loss_of: Loss, *, looks: bool) -> Step:
    """Make one step without the update; note gradients if it `looks`."""
    ready: list[tuple[torch.cuda.Event, int]] = []
    hooks = [
        each.register_post_accumulate_grad_hook(
            lambda grad_of: ready.append((event(), grad_of.numel() * grad_of.element_size()))
        )
        for each in model.parameters()
        if looks
    ]
    model.zero_grad(set_to_none=True)
    begun = event()
    loss = loss_of(model)
    forwarded = event()
    loss.backward()
    done = event()
    torch.cuda.synchronize()
    for hook in hooks:
        hook.remove()
    return Step(begun, forwarded, done, ready)


def measured_readiness(step: Step) -> list[float]:
    """Return the share of backward after which so much of the gradients is there."""
    backward = step.forwarded.elapsed_time(step.done)
    total, got, found = sum(size for _, size in step.ready), 0, []
    for at, size in step.ready:
        got += size
        while len(found) < len(LOOKS) and got >= LOOKS[len(found)] * total:
            found.append(step.forwarded.elapsed_time(at) / backward)
    return found


def assumed_readiness(name: str) -> list[float]:
    """Return what the simulator's model assumes, at the same shares of the bytes."""
    size = architecture(name).size()
    total = sum(layer.parameters for layer in size.layers)
    got, spent, found = 0, 0.0, []
    for layer in reversed(size.layers):
        got, spent = got + layer.parameters, spent + layer.share
        while len(found) < len(LOOKS) and got >= LOOKS[len(found)] * total:
            found.append(spent)
    return found


def measure(job: Job, peak: float) -> dict[str, object]:
    """Return what was measured of `job` on a card of `peak` TFLOP/s beside what is assumed."""
    torch.manual_seed(1)
    model = job.model().cuda().train()
    loss_of = job.loss_on(job.batch)
    for _ in range(WARM_UP):
        run(model, loss_of, looks=False)
    steps = [run(model, loss_of, looks=False) for _ in range(STEPS)]
    looked = [run(model, loss_of, looks=True) for _ in range(STEPS)]
    step_ms = [step.begun.elapsed_time(step.done) for step in steps]
    forward = [step.begun.elapsed_time(step.forwarded) for step in steps]
    operations = 2 * job.batch * architecture(job.name).products / FORWARD
    median = statistics.median(step_ms)
    readiness = zip(*map(measured_readiness, looked), strict=True)
    return {
        "model": job.name,
        "batch": job.batch,
        "parameters": sum(each.numel() for each in model.parameters()),
        "assumed_parameters": architecture(job.name).parameters,
        "step_ms": median,
        "step_ms_smallest": min(step_ms),
        "step_ms_largest": max(step_ms),
        "assumed_step_ms": operations / (ASSUMED_SHARE * peak * 1e12) * 1e3,
        "share_of_peak": operations / (median / 1e3) / (peak * 1e12),
        "forward_share": statistics.median(f / s for f, s in zip(forward, step_ms, strict=True)),
        "ready_after": [statistics.median(each) for each in readiness],
        "assumed_ready_after": assumed_readiness(job.name),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peak", type=float, required=True, help="TFLOP/s in float32")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    rows = []
    for job in JOBS:
        rows.append(row := measure(job, options.peak))
        print(
            f"{job.name:14} {row['step_ms']:8.1f} ms, assumed {row['assumed_step_ms']:7.1f};"
            f" {row['share_of_peak']:.2f} of the peak; forward {row['forward_share']:.2f};"
            f" ready {row['ready_after']}, assumed {row['assumed_ready_after']}",
            flush=True,
        )
        torch.cuda.empty_cache()
    if options.json:
        environment = {
            "gpu": torch.cuda.get_device_name(),
            "peak_tflops": options.peak,
            "torch": torch.__version__,
            "cudnn": torch.backends.cudnn.version(),
            "transformers": transformers.__version__,
            "torchvision": torchvision.__version__,
        }
        found = {"environment": environment, "looks": LOOKS, "rows": rows}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
