"""One round of learning from rewards: answers drawn, scored, and learnt from; and the loop over rounds."""

import math
import time
from typing import Any

import numpy as np
import torch

from tasks.errors import AthanorError
from tasks.training.checkpoint import Checkpoints
from tasks.training.context import Context
from tasks.training.engine import Engine
from tasks.training.job import EVENTS
from tasks.training.recipe import RlhfStage
from tasks.training.rl.experience import Experience
from tasks.training.rl.kl import kl_estimate
from tasks.training.rl.policy_loss import clipped_policy_loss, clipped_value_loss, entropy, token_log_probs
from tasks.training.rl.rounds import Round, micro_batches, spread
from tasks.training.rl.symptoms import repeated_share, reward_symptoms
from tasks.training.schedule import learning_rate
from tasks.training.symptoms import RUNBOOK
from tasks.training.tracking import Trackers, tracked


class Learner:
    """A run of PPO or GRPO: rounds of experience, and the steps that are taken on each."""

    def __init__(self, context: Context, engine: Engine, experience: Experience) -> None:
        self.config: RlhfStage = experience.config
        self.context, self.engine, self.experience = context, engine, experience
        self.checkpoints = Checkpoints(context, engine, self.config.keep_checkpoints)

    def run(self) -> None:
        """Every round that is still to take, and the checkpoints between them.

        Raises AthanorError when the loss is no number, or the policy has left its reference too far behind.
        """
        with tracked(self.context) as trackers:
            self._run(trackers)

    def _run(self, trackers: Trackers) -> None:
        step, states = self.checkpoints.resume()
        for name, part in self.experience.parts().items():
            if states:
                part.restore(states[name])
        while step < self.config.steps:
            self.context.check()
            self.checkpoints.check()
            record = self.take(step)
            step += 1
            trackers.log(self.context.report(**record))
            self._check(record)
            if step % self.config.checkpoint_every == 0 or step == self.config.steps:
                self.checkpoints.save(step, {name: part.state() for name, part in self.experience.parts().items()})
                self._report_symptoms()
        self.checkpoints.wait()
        torch.distributed.barrier()

    def _check(self, record: dict[str, Any]) -> None:
        if not math.isfinite(record["loss"]) or not math.isfinite(record["grad_norm"]):
            raise AthanorError(f"round {record['step']}: the loss is no number; lower the learning rate in the recipe")
        if record["kl"] > self.config.kl.bound:
            self.context.event("kl_running_away", step=record["step"], kl=record["kl"], bound=self.config.kl.bound)
            raise AthanorError(
                f"round {record['step']}: the policy is {record['kl']:.3g} nats a token from its reference, more than "
                f"kl.bound {self.config.kl.bound:g}; raise kl.coefficient, set kl.target, or lower the learning rate"
            )

    def _report_symptoms(self) -> None:
        """Report the symptoms that the run shows by now, each once."""
        if self.context.first:
            known = {line["event"] for line in self.context.lines(EVENTS)}
            for found in reward_symptoms(self.context.lines("progress.jsonl"), self.config):
                if found.event not in known:
                    evidence = {"step": found.step, **found.evidence, "remedy": found.remedy}
                    self.context.event(found.event, **evidence, runbook=f"{RUNBOOK}#{found.event}")

    def take(self, step: int) -> dict[str, Any]:
        """Take round `step` (from 0). Returns its line of progress."""
        start, config = time.monotonic(), self.config
        drawn = self.experience.draw(step)
        after_rollout = time.monotonic()
        done = self.experience.score(*drawn)
        learnt = self.experience.with_replayed(done, drawn[1], step)
        after_scoring = time.monotonic()
        rate = learning_rate(step, config.steps, config.optimizer)
        sums: dict[str, float] = {}
        for update in range(config.updates):
            changed, sums = self.update(learnt, np.random.default_rng([config.seed, step, update]), rate)
        after_update = time.monotonic()
        line = self._summed(done, learnt, sums)
        return {
            "step": step + 1,
            "steps": config.steps,
            **line,
            "kl_coefficient": self.experience.kl.coefficient,
            "grad_norm": changed.grad_norm,
            "update_ratio": changed.update_ratio,
            "learning_rate": rate,
            "tokens_per_second": round(line["tokens"] / (after_update - start), 1),
            "rollout_seconds": round(after_rollout - start, 3),
            "scoring_seconds": round(after_scoring - after_rollout, 3),
            "update_seconds": round(after_update - after_scoring, 3),
            "activation_max": self.engine.max(self.engine.activations.take()),
            "seconds": round(time.monotonic() - start, 3),
        }

    def _summed(self, done: Round, learnt: Round, sums: dict[str, float]) -> dict[str, Any]:
        """Figures of a round over all ranks: of its own answers (`done`), and of the last update on all (`learnt`).

        The coefficient of the KL penalty follows them.
        """
        config, own = self.config, len(done.answers)
        estimates = {name: kl_estimate(done.old, done.reference, name) for name in (config.kl.estimator, "k1")}
        told = {
            "tokens": float(done.mask.sum()),
            "answers": float(own),
            "unended": float(sum(not answer.ended for answer in done.answers)),
            "asked": float(sum(len(prompt.ids) for prompt in done.prompts)),
            "repeated": repeated_share([answer.ids for answer in done.answers]) * own,
            "reward": float(done.reward.sum()),
            "squares": float(done.reward.square().sum()),
            **{f"raw {name}": float(value) for name, value in zip(config.rewards, done.raw.sum(0), strict=True)},
            **{f"bin {bin}": float(count) for bin, count in enumerate(np.histogram(done.reward, HISTOGRAM)[0])},
            **{f"kl {name}": found[done.mask].double().sum().item() for name, found in estimates.items()},
            "learnt": float(learnt.mask.sum()),
            "replayed": float(len(learnt.answers) - own),
            "stale_tokens": float(learnt.mask[own:].sum()),
            "stale_weights": float(learnt.weights[own:].double().sum()),
            **sums,
        }
        total = dict(zip(told, self.engine.sum(*told.values()), strict=True))
        count, tokens, learnt_tokens = total["answers"], total["tokens"], total["learnt"]
        self.experience.kl.update(total["kl k1"] / count, int(count))
        mean, every = total["reward"] / count, int(tokens + total["asked"])
        raw = {name: total[f"raw {name}"] / count for name in config.rewards}
        weight = total["stale_weights"] / max(1.0, total["stale_tokens"])
        return {
            "loss": total["loss"],
            "policy_loss": total["policy_loss"],
            "value_loss": total["value_loss"],
            "reward": sum(share * raw[name] for name, share in config.rewards.items()),
            "rewards": raw,
            "normalised_reward": mean,
            "normalised_deviation": max(0.0, total["squares"] / count - mean**2) ** 0.5,
            "reward_histogram": [int(total[f"bin {bin}"]) for bin in range(len(HISTOGRAM) - 1)],  # of normalised ones
            "repeated_share": total["repeated"] / count,
            "kl": total[f"kl {config.kl.estimator}"] / tokens,
            "entropy": total["entropy"] / learnt_tokens,
            "ratio": total["ratio"] / learnt_tokens,
            "clipped_share": total["clipped"] / learnt_tokens,
            "answer_tokens": tokens / count,
            "unended_share": total["unended"] / count,
            **({"replayed": int(total["replayed"]), "stale_weight": weight} if config.replay else {}),
            "tokens": every,
            "supervised": int(tokens),
            "slots": every,
        }

    def update(self, done: Round, shuffle: np.random.Generator, rate: float) -> tuple[Any, dict[str, float]]:
        """One optimizer step over all answers of the round. Returns what it did, and this rank's sums."""
        config, engine = self.config, self.engine
        (tokens,) = engine.sum(float(done.mask.sum()))
        sums = dict.fromkeys(SUMS, 0.0)
        for rows in micro_batches(self.config, shuffle.permutation(len(done.answers)).tolist()):
            here = done.mask[rows]
            logits, labels = engine.predict(done.batch(rows, self.experience.pad))
            new = spread(token_log_probs(logits[:, :-1], labels, config.temperature), here)
            policy, counted = clipped_policy_loss(
                new, done.old[rows], done.advantages[rows], here, tokens, clip=config.clip, weights=done.weights[rows]
            )
            spare = entropy(logits[:, :-1], config.temperature).sum()
            loss = policy - config.entropy_weight * spare / tokens
            value = torch.zeros(())
            if config.method == "ppo":
                values = spread(logits[:, -1].float(), here)
                known = done.values[rows], done.returns[rows]
                value = clipped_value_loss(values, *known, here, tokens, clip=config.value_clip)
                loss = loss + config.value_weight * value
            else:
                divergence = kl_estimate(new, done.reference[rows], config.kl.estimator)
                loss = loss + self.experience.kl.coefficient * torch.where(here, divergence, 0.0).sum() / tokens
                loss = loss + 0 * logits[:, -1].sum()  # the critic takes part in every backward pass, under ZeRO-3
            engine.backward(loss)
            found = {"loss": loss, "policy_loss": policy, "value_loss": value, "entropy": spare}
            for name, item in {**{name: float(item.detach()) for name, item in found.items()}, **counted}.items():
                sums[name] += item
        return engine.step(rate), sums



HISTOGRAM = [-np.inf, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, np.inf]  # edges of normalised rewards
SUMS = ("loss", "policy_loss", "value_loss", "entropy", "ratio", "clipped")  # over tokens, of an update
