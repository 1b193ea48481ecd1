"""TRL's half of the training benchmark: `python training_trl.py WORK`, with TRL on the path.

`install` puts TRL and the two packages it lacks beside this project's own ones, into a folder that only this benchmark
and the test of its losses have on their path.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson

from tests.benchmarks.pace import Pace, Work

PACKAGES = ("trl==1.16.0", "datasets==5.2.0", "multiprocess==0.70.19")
FOLDER = Path(os.environ.get("BENCH_TRL") or Path(__file__).resolve().parents[2] / ".athanor" / "bench-trl")


def install() -> Path:
    """The folder that holds TRL. Raises CalledProcessError when pip cannot install it."""
    if not (FOLDER / ".ready").exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(FOLDER), *PACKAGES]
        subprocess.run(command, check=True, capture_output=True)
        (FOLDER / ".ready").write_text("\n".join(PACKAGES))
    return FOLDER


def main(work: Work, folder: str) -> None:
    """SFTTrainer on the same conversations in the same order, on one process."""
    import torch
    from datasets import Dataset
    from torch.optim.lr_scheduler import LambdaLR
    from torch.utils.data import SequentialSampler
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    torch.manual_seed(0)
    torch.set_num_threads(work.threads)
    pace, losses = Pace(work), [0.0]

    class Told(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            pace.step()
            losses.append(0.0)

    class Trainer(SFTTrainer):
        """As it is, but in the given order, and counting what it trains on."""

        def _get_train_sampler(self, *args: Any, **more: Any) -> Any:
            return SequentialSampler(self.train_dataset)

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **more: Any) -> Any:
            labels = inputs["labels"]
            sums = pace.sums
            sums["supervised"] += int((labels[:, 1:] != -100).sum())
            sums["slots"] += labels.numel()
            mask = inputs.get("attention_mask")
            sums["tokens"] += labels.numel() if mask is None else int(mask.sum())
            loss = super().compute_loss(model, inputs, *args, **more)
            if work.losses:
                losses[-1] += float(loss.detach())
            return loss

    rows = [
        {"input_ids": ids, "labels": [i if learnt else -100 for i, learnt in zip(ids, mask, strict=True)]}
        for ids, mask in work.items()
    ]
    needed = work.steps * work.micro_batch * work.accumulation
    rows = (rows * (1 + needed // len(rows)))[: max(needed, len(rows))]
    config = SFTConfig(
        output_dir=folder,
        per_device_train_batch_size=work.micro_batch,
        gradient_accumulation_steps=work.accumulation,
        max_steps=work.steps,
        learning_rate=max(work.rates, default=1e-3),
        lr_scheduler_type="constant",
        weight_decay=0.1,
        adam_beta2=0.95,
        max_length=work.length,
        packing=work.packed,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    model = AutoModelForCausalLM.from_pretrained(work.model, dtype=torch.float32)
    optimizers = (None, None)
    if work.rates:  # the test of losses: one optimizer for both sides
        decayed = [p for p in model.parameters() if p.ndim >= 2]
        others = [p for p in model.parameters() if p.ndim < 2]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.95))
        optimizers = (optimizer, LambdaLR(optimizer, work.rate))  # type: ignore[assignment]
    trainer = Trainer(
        model=model,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(work.model),
        callbacks=[Told()],
        optimizers=optimizers,
    )
    trainer.train()
    if work.losses:
        Path(work.losses).write_bytes(orjson.dumps(losses[: work.steps]))


if __name__ == "__main__":
    main(Work.read(sys.argv[1]), sys.argv[2])
