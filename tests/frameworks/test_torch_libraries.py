"""What trains by torch on users' behalf, with Shoal below it: Lightning, Accelerate, Ray Train."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from started_ranks import outcomes

if TYPE_CHECKING:
    from pathlib import Path

DATA = """
import json, os, sys
from pathlib import Path
import torch
import torch.distributed as dist

torch.manual_seed(1)
DATA = torch.utils.data.TensorDataset(torch.randn(96, 8), torch.randint(0, 3, (96,)))

def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))

def tell(name, model, **more):
    weights = [each.detach().flatten().tolist() for each in model.parameters()]
    Path(os.environ["TOLD"], f"{name}-{dist.get_rank()}").write_text(
        json.dumps({"weights": sum(weights, []), "backend": dist.get_backend(), **more})
    )
"""

LIGHTNING = (
    DATA
    + """
import lightning
from lightning.pytorch.strategies import DDPStrategy
from shoal.adapters.lightning import ShoalStrategy

WHERE = json.loads(os.environ.get("WHERE", '{"accelerator": "cpu", "devices": 2}'))

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.inner = model()

    def training_step(self, batch, index):
        return torch.nn.functional.cross_entropy(self.inner(batch[0]), batch[1])

    def validation_step(self, batch, index):
        worst = self.inner(batch[0]).abs().max()
        self.log("worst", worst, sync_dist=True, reduce_fx="max")

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

def fit(strategy, epochs, precision="32-true", **options):
    module = Module()
    trainer = lightning.Trainer(
        **WHERE, strategy=strategy, max_epochs=epochs, logger=False, precision=precision,
        enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=2,
        gradient_clip_val=0.5, enable_checkpointing=False, default_root_dir=os.environ["TOLD"],
    )
    trainer.fit(module, torch.utils.data.DataLoader(DATA, batch_size=8), **options)
    return trainer, module

STRATEGIES = {
    "ddp": lambda: DDPStrategy(process_group_backend="gloo"),
    "ddp over shoal": lambda: DDPStrategy(process_group_backend="shoal"),
    "all-reduce": lambda: ShoalStrategy("all-reduce", transport="shoal"),
    "ripples": lambda: ShoalStrategy("ripples"),
    "ripples over shoal": lambda: ShoalStrategy("ripples", transport="shoal"),
    "ds-sync": lambda: ShoalStrategy("ds-sync", transport="shoal", loss_bound=0.1),
    "ps-bsp": lambda: ShoalStrategy("ps-bsp"),
    "bf16": lambda: ShoalStrategy("ds-sync"),
}

if __name__ == "__main__":
    name = sys.argv[1]
    trainer, module = fit(STRATEGIES[name](), 2, "bf16-mixed" if name == "bf16" else "32-true")
    device = str(trainer.strategy.root_device)
    tell(name, module, device=device, rate=trainer.optimizers[0].param_groups[0]["lr"])
    if name == "ddp over shoal":  # under inference mode, with metrics that all ranks reduce
        (measured,) = trainer.validate(module, torch.utils.data.DataLoader(DATA, batch_size=8))
        tell("validated", module, worst=measured["worst"])
    if name in ("all-reduce", "ps-bsp"):
        trainer, _ = fit(STRATEGIES[name](), 1)
        path = str(Path(os.environ["TOLD"], "half.ckpt"))
        trainer.save_checkpoint(path)
        _, module = fit(STRATEGIES[name](), 2, ckpt_path=path)
        tell(f"{name} resumed", module)
"""
)


TWO_OPTIMIZERS = (
    DATA
    + """
import lightning
import shoal
from lightning.pytorch.strategies import DDPStrategy
from shoal.adapters.lightning import ShoalStrategy

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        torch.manual_seed(int(os.environ["RANK"]))
        self.maker, self.critic = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
        self.fixed = torch.nn.Linear(1, 1)
        self.fixed.requires_grad_(False)

    def training_step(self, batch, index):
        maker, critic = self.optimizers()
        real, made = batch[0], self.maker(batch[0])
        critic.zero_grad()
        self.manual_backward(self.critic(made.detach()).mean() - self.critic(real).mean())
        critic.step()
        self.toggle_optimizer(maker)
        maker.zero_grad()
        self.manual_backward(-self.critic(self.maker(real)).mean())
        maker.step()
        self.untoggle_optimizer(maker)

    def configure_optimizers(self):
        return [torch.optim.SGD(each.parameters(), lr=0.01) for each in (self.maker, self.critic)]

STRATEGIES = {
    "ddp": lambda: DDPStrategy(process_group_backend="gloo", find_unused_parameters=True),
    "all-reduce": lambda: ShoalStrategy("all-reduce"),
    "ripples": lambda: ShoalStrategy(shoal.Ripples(interval=2)),
}

if __name__ == "__main__":
    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy=STRATEGIES[sys.argv[1]](), max_epochs=1,
        logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(DATA, batch_size=8))
    tell(sys.argv[1], module)
    if sys.argv[1] == "ddp":  # gloo's threads may end the process by SIGABRT otherwise
        dist.destroy_process_group()
"""
)


def run(
    folder: Path, code: str, *arguments: str, ranks: int = 0
) -> dict[str, list[dict[str, Any]]]:
    """Run `code`, under torchrun if there are `ranks`; return what ranks told, by name."""
    script = folder / "script.py"
    script.write_text(code)
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks else []
    process = subprocess.Popen(
        [sys.executable, *launcher, str(script), *arguments],
        env={**os.environ, "TOLD": str(folder), "RAY_USAGE_STATS_ENABLED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    ((status, _, errors),) = outcomes([process])
    assert status == 0, errors[-3000:]
    told: dict[str, list[dict[str, Any]]] = {}
    for each in sorted(folder.glob("*-[01]")):
        told.setdefault(each.name[:-2], []).append(json.loads(each.read_text()))
    assert all(len(each) == 2 for each in told.values())
    return told


@pytest.mark.skipif(find_spec("lightning") is None, reason="needs Lightning: make test-frameworks")
def test_lightning_s_optimizers_meet_each_by_itself(tmp_path: Path) -> None:
    """Manual optimization, one model of two parts: what both would average is nobody's."""
    told: dict[str, list[dict[str, Any]]] = {}
    for name in ("ddp", "all-reduce", "ripples"):
        told |= run(tmp_path, TWO_OPTIMIZERS, name, ranks=2)
    wanted = told["ddp"][0]["weights"]
    for name, ranks in told.items():
        assert ranks[0]["weights"] == ranks[1]["weights"], name
        apart = 0.1 if name == "ripples" else 1e-5
        assert ranks[0]["weights"] == pytest.approx(wanted, abs=apart), name


@pytest.mark.skipif(find_spec("lightning") is None, reason="needs Lightning: make test-frameworks")
def test_lightning_trains_as_its_ddp_does_and_resumes(tmp_path: Path) -> None:
    told: dict[str, list[dict[str, Any]]] = {}
    for name in ("ddp", "ddp over shoal", "all-reduce", "ripples", "ds-sync", "ps-bsp", "bf16"):
        told |= run(tmp_path, LIGHTNING, name)
    assert told["validated"][0]["worst"] == told["validated"][1]["worst"] > 0
    resumed = told.pop("ps-bsp resumed")[0]["weights"]
    assert resumed == pytest.approx(told["ps-bsp"][0]["weights"], abs=1e-5)
    wanted = told["ddp"][0]["weights"]
    assert told["ddp over shoal"][0]["backend"] == "shoal"
    for name, ranks in told.items():
        assert ranks[0]["weights"] == ranks[1]["weights"], name
        if name in EXACT:
            assert ranks[0]["weights"] == pytest.approx(wanted, abs=1e-5), name
        else:
            assert ranks[0]["weights"] == pytest.approx(wanted, abs=0.1), name
            assert ranks[0]["weights"] != pytest.approx(wanted, abs=1e-5), name
        if "rate" in ranks[0]:
            assert ranks[0]["rate"] == 0.025


EXACT = ("ddp", "ddp over shoal", "validated", "all-reduce", "all-reduce resumed")
"""The runs that clip the mean gradient, as DDP does; a server's workers clip each its own."""


ACCELERATE = (
    DATA
    + """
import shoal
from accelerate import Accelerator

if sys.argv[1] == "backend":
    dist.init_process_group("shoal")
accelerator = Accelerator(cpu=True)
module = model()
optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(DATA, batch_size=8)
if sys.argv[1] == "backend":
    module, optimizer, loader = accelerator.prepare(module, optimizer, loader)
else:
    shoal.init()
    optimizer = shoal.DistributedOptimizer(optimizer, module, sync=sys.argv[1])
    loader = accelerator.prepare(loader)
for inputs, labels in loader:
    optimizer.zero_grad()
    accelerator.backward(torch.nn.functional.cross_entropy(module(inputs), labels))
    optimizer.step()
if sys.argv[1] != "backend":
    optimizer.finish()
    optimizer.average_model()
tell(sys.argv[1], accelerator.unwrap_model(module))
shoal.shutdown()
"""
)


@pytest.mark.skipif(
    find_spec("accelerate") is None, reason="needs Accelerate: make test-frameworks"
)
def test_accelerate_takes_the_backend_or_leaves_the_optimizer_to_shoal(tmp_path: Path) -> None:
    told: dict[str, list[dict[str, Any]]] = {}
    for name in ("backend", "all-reduce", "ripples"):
        told |= run(tmp_path, ACCELERATE, name, ranks=2)
    assert told["backend"][0]["backend"] == "shoal"
    for ranks in told.values():  # two workers without momentum: means of parameters or gradients
        assert ranks[0]["weights"] == ranks[1]["weights"]
        assert ranks[0]["weights"] == pytest.approx(told["backend"][0]["weights"], abs=1e-5)


RAY = (
    DATA
    + """
import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model

def loop(config):
    import shoal

    module = model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    if config["sync"] == "backend":
        module = prepare_model(module)
    else:
        shoal.init()
        optimizer = shoal.DistributedOptimizer(optimizer, module, sync=config["sync"])
    for first in range(8 * dist.get_rank(), 96, 16):
        inputs, labels = DATA[first : first + 8]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(inputs), labels).backward()
        optimizer.step()
    if config["sync"] != "backend":
        optimizer.finish()
        optimizer.average_model()
    tell(config["sync"], getattr(module, "module", module))
    if config["sync"] != "backend":
        shoal.shutdown()

if __name__ == "__main__":
    ray.init(num_cpus=2, _node_ip_address="127.0.0.1", include_dashboard=False)
    for sync in ("backend", "ripples"):
        TorchTrainer(
            loop,
            train_loop_config={"sync": sync},
            torch_config=TorchConfig(backend="shoal" if sync == "backend" else "gloo"),
            scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
            run_config=RunConfig(storage_path=os.environ["TOLD"]),
        ).fit()
"""
)


@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray Train: make test-frameworks")
def test_ray_train_takes_the_backend_or_leaves_the_optimizer_to_shoal(tmp_path: Path) -> None:
    told = run(tmp_path, RAY)
    assert told["backend"][0]["backend"] == "shoal"
    for ranks in told.values():
        assert ranks[0]["weights"] == ranks[1]["weights"]
        assert ranks[0]["weights"] == pytest.approx(told["backend"][0]["weights"], abs=1e-5)
