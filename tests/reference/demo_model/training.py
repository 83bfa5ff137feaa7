"""What all stages share: steps that depend on seed and step only, checkpoints, a log, a time budget.

A stage is interrupted and resumed without a difference: data and noise of a step come from generators seeded with the
stage's seed and the step's number, and the learning rate from the step's number.
"""

import argparse
import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

# Before torch starts its threads: waiting threads that spin make a shared machine ten times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from PIL import Image  # noqa: E402
from torch import nn  # noqa: E402

from demo_model import captions, scenes  # noqa: E402

LOG_EVERY_STEPS = 20
SAVE_EVERY_SECONDS = 120.0
# Singles and pairs teach the same codes; letters have a path of their own to learn.
KIND_SHARES = {"single": 0.4, "pair": 0.4, "letter": 0.2}


@dataclass(frozen=True)
class Recipe:
    name: str
    steps: int
    learning_rate: float
    seed: int
    warmup_steps: int = 200
    # Share of the steps, at the end, over which the rate falls. Below 1 a run can be made longer from a state saved
    # before the fall.
    decay_share: float = 1.0
    weight_decay: float = 0.01
    ema_decay: float = 0.998
    gradient_norm_max: float = 1.0

    def learning_rate_at(self, step: int) -> float:
        """Linear warm-up, level, then half a cosine down to a hundredth."""
        warmup = min(1.0, (step + 1) / self.warmup_steps)
        level = (1 - self.decay_share) * self.steps
        fallen = (step - level) / (self.steps - level)
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, fallen))))
        return self.learning_rate * warmup * (0.01 + 0.99 * cosine)


@dataclass(frozen=True)
class Options:
    folder: Path
    minutes: float
    steps: int | None
    threads: int


def parse_options(description: str) -> Options:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where all stages keep checkpoints, logs and sheets")
    parser.add_argument("--minutes", type=float, default=150.0, help="stop after so much work; run again to go on")
    parser.add_argument("--steps", type=int, help="how many in all, instead of the recipe's number")
    parser.add_argument("--threads", type=int, default=2)
    options = Options(**vars(parser.parse_args()))
    torch.set_num_threads(options.threads)
    options.folder.mkdir(parents=True, exist_ok=True)
    return options


def random_scenes(generator: np.random.Generator, count: int, kinds: dict[str, float] = KIND_SHARES) -> list:
    names = generator.choice(list(kinds), size=count, p=list(kinds.values()))
    return [scenes.random_scene(generator, name, "train") for name in names]


def to_tensor(pictures: list[np.ndarray]) -> torch.Tensor:
    """(batch, 3, height, width) in -1..1, channels last, as the VAE gets it from the pipeline."""
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 127.5 - 1


def save_sheet(path: Path, pictures: torch.Tensor, columns: int = 8) -> None:
    """`pictures` (batch, 3, height, width) in -1..1, all of one size."""
    arrays = (pictures.float().clamp(-1, 1).add(1) * 127.5).round().byte().permute(0, 2, 3, 1).numpy()
    blank = np.zeros_like(arrays[0])
    cells = [*arrays, *[blank] * (-len(arrays) % columns)]
    rows = [np.concatenate(cells[i : i + columns], axis=1) for i in range(0, len(cells), columns)]
    Image.fromarray(np.concatenate(rows)).save(path)


def weights_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.weights.pt"


def load_weights(folder: Path, name: str, module: nn.Module) -> None:
    module.load_state_dict(torch.load(weights_path(folder, name), weights_only=True))


class Trainer:
    """Owns the optimiser, the averaged weights and the files of one stage.

    `module` holds everything that learns. `<name>.state.pt` is for resuming, `<name>.weights.pt` (the averaged weights)
    for the next stages and may be carried to another machine alone.
    """

    def __init__(self, recipe: Recipe, module: nn.Module, options: Options) -> None:
        self.recipe = replace(recipe, steps=options.steps or recipe.steps)
        self.module, self.options = module, options
        self.averaged = {name: value.detach().clone() for name, value in module.state_dict().items()}
        self.optimizer = torch.optim.AdamW(
            module.parameters(), lr=0.0, betas=(0.9, 0.98), weight_decay=recipe.weight_decay, fused=True
        )
        self.step, self.seconds = 0, 0.0
        self._state_path = options.folder / f"{recipe.name}.state.pt"
        self._log_path = options.folder / f"{recipe.name}.log.jsonl"
        if self._state_path.exists():
            self._resume()

    def _resume(self) -> None:
        state = torch.load(self._state_path, weights_only=True)
        self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.averaged, self.step, self.seconds = state["averaged"], state["step"], state["seconds"]

    def _save(self, sheet: Callable[[Path], None]) -> None:
        state = {
            "module": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "averaged": self.averaged,
            "step": self.step,
            "seconds": self.seconds,
        }
        # Renamed when whole: a run that is killed here resumes from the file before.
        weights = weights_path(self.options.folder, self.recipe.name)
        for value, path in ((state, self._state_path), (self.averaged, weights)):
            torch.save(value, path.with_suffix(".new"))
            path.with_suffix(".new").rename(path)
        current = {name: value.clone() for name, value in self.module.state_dict().items()}
        self.module.load_state_dict(self.averaged)
        with torch.no_grad():
            sheet(self.options.folder / f"{self.recipe.name}.sheet.png")
        self.module.load_state_dict(current)

    def _update(self, loss: torch.Tensor) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate_at(self.step)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.module.parameters(), self.recipe.gradient_norm_max)
        self.optimizer.step()
        # Short at first, or the random start would stay in the average.
        decay = min(self.recipe.ema_decay, (1 + self.step) / (10 + self.step))
        current = self.module.state_dict()
        with torch.no_grad():
            averaged = [value for value in self.averaged.values() if value.is_floating_point()]
            live = [current[name] for name, value in self.averaged.items() if value.is_floating_point()]
            torch._foreach_lerp_(averaged, live, 1 - decay)

    def run(
        self,
        losses: Callable[[int, np.random.Generator], dict[str, torch.Tensor]],
        sheet: Callable[[Path], None],
    ) -> None:
        """`losses` returns named losses of a step; the one called "loss" is minimised. SIGTERM saves, then stops."""
        begun = saved = self._clock()
        before = self.seconds
        sums, summed = {}, 0
        asked_to_stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: asked_to_stop.set())
        while self.step < self.recipe.steps and self._clock() - begun < 60 * self.options.minutes:
            if asked_to_stop.is_set():
                break
            torch.manual_seed(self.recipe.seed * 1_000_003 + self.step)
            named = losses(self.step, np.random.default_rng([self.recipe.seed, self.step]))
            self._update(named["loss"])
            self.step += 1
            self.seconds = before + self._clock() - begun
            for name, value in named.items():
                sums[name] = sums.get(name, 0.0) + float(value.detach())
            summed += 1
            if self.step % LOG_EVERY_STEPS == 0:
                self._log({name: total / summed for name, total in sums.items()})
                sums, summed = {}, 0
            if self._clock() - saved > SAVE_EVERY_SECONDS:
                self._save(sheet)
                saved = self._clock()
        self._save(sheet)

    def _clock(self) -> float:
        """Seconds of work on free cores: a run that is stopped or crowded out for a while loses none of its budget."""
        return time.process_time() / self.options.threads

    def _log(self, losses: dict[str, float]) -> None:
        values = {name: float(f"{value:.5g}") for name, value in losses.items()}
        line = json.dumps({"step": self.step, "seconds": round(self.seconds, 1)} | values)
        with self._log_path.open("a") as log:
            log.write(line + "\n")
        print(line, flush=True)


def captions_of(chosen: list[scenes.Scene], generator: np.random.Generator) -> list[str]:
    return [captions.caption(scene, generator) for scene in chosen]
