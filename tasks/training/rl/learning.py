"""One round of learning from rewards: answers drawn, scored, and learnt from; and the loop over rounds."""

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tasks.errors import AthanorError
from tasks.training.checkpoint import Checkpoints
from tasks.training.context import Context
from tasks.training.data import Batch, collate_tight
from tasks.training.data import Sequence as Row
from tasks.training.engine import Engine
from tasks.training.job import EVENTS
from tasks.training.losses import IGNORED
from tasks.training.recipe import RlhfStage
from tasks.training.rl.advantages import gae, group_advantages, whitened
from tasks.training.rl.kl import AdaptiveKl, kl_estimate
from tasks.training.rl.normaliser import RewardNormaliser
from tasks.training.rl.policy import without_value_head
from tasks.training.rl.policy_loss import clipped_policy_loss, clipped_value_loss, entropy, token_log_probs
from tasks.training.rl.prompts import Prompt, PromptOrder
from tasks.training.rl.rollout import Answer, Sampler
from tasks.training.rl.scoring import Scorer
from tasks.training.rl.symptoms import repeated_share, reward_symptoms
from tasks.training.schedule import learning_rate
from tasks.training.symptoms import RUNBOOK
from tasks.training.tracking import Trackers, tracked


@dataclass
class Round:
    """This rank's answers of a round. Tensors are (answers, longest answer), 0 where not `mask`."""

    prompts: list[Prompt]
    answers: list[Answer]
    groups: torch.Tensor  # which prompt of the round, (answers,)
    raw: np.ndarray  # (answers, rewards)
    reward: torch.Tensor  # normalised and weighted, (answers,)
    mask: torch.Tensor
    old: torch.Tensor  # log-probs of the policy that drew
    reference: torch.Tensor  # log-probs of the model that training began with
    values: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor


class Learner:
    """What a run of PPO or GRPO holds. The same on every rank, but for the answers each rank draws."""

    def __init__(
        self,
        context: Context,
        engine: Engine,
        sampler: Sampler,
        reference: Any,
        scorer: Scorer,
        prompts: Sequence[Prompt],
        tokenizer: Any,
    ) -> None:
        assert isinstance(engine.config, RlhfStage)
        self.config: RlhfStage = engine.config
        self.context, self.engine, self.sampler, self.reference = context, engine, sampler, reference
        self.scorer, self.prompts, self.tokenizer = scorer, prompts, tokenizer
        self.order = PromptOrder(len(prompts), self.config)
        self.kl = AdaptiveKl(self.config.kl.coefficient, self.config.kl.target, self.config.kl.horizon)
        self.normaliser = RewardNormaliser(self.config.reward_clip)
        self.checkpoints = Checkpoints(context, engine, self.config.keep_checkpoints)

    def run(self) -> None:
        """Every round that is still to take, and the checkpoints between them.

        Raises AthanorError when the loss is no number, or the policy has left its reference too far behind.
        """
        with tracked(self.context) as trackers:
            self._run(trackers)

    def _run(self, trackers: Trackers) -> None:
        step, states = self.checkpoints.resume()
        if states:
            self.kl.restore(states["kl"])
            self.normaliser.restore(states["normaliser"])
        while step < self.config.steps:
            self.context.check()
            self.checkpoints.check()
            record = self.take(step)
            step += 1
            trackers.log(self.context.report(**record))
            self._check(record)
            if step % self.config.checkpoint_every == 0 or step == self.config.steps:
                self.checkpoints.save(step, {"kl": self.kl.state(), "normaliser": self.normaliser.state()})
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
        start, config, engine = time.monotonic(), self.config, self.engine
        drawn = self.draw(step)
        after_rollout = time.monotonic()
        done = self.score(drawn)
        after_scoring = time.monotonic()
        rate = learning_rate(step, config.steps, config.optimizer)
        sums: dict[str, float] = {}
        for update in range(config.updates):
            changed, sums = self.update(done, np.random.default_rng([config.seed, step, update]), rate)
        after_update = time.monotonic()
        chosen, answered = float(done.mask.sum()), len(done.answers)
        divergence = kl_estimate(done.old, done.reference, config.kl.estimator)[done.mask].double().sum().item()
        first = kl_estimate(done.old, done.reference, "k1")[done.mask].double().sum().item()
        totals = engine.sum(
            chosen, answered, divergence, first, float(done.reward.sum()), float(done.reward.square().sum()),
            sum(not answer.ended for answer in done.answers), *done.raw.sum(0),
            repeated_share([answer.ids for answer in done.answers]) * answered,
            *np.histogram(done.reward, HISTOGRAM)[0], sum(len(p.ids) for p in done.prompts),
            *(sums[name] for name in SUMS),
        )  # fmt: skip
        tokens, count, divergence, first, reward, squares, unended, *rest = totals
        raw, (repeated, *rest) = rest[: len(config.rewards)], rest[len(config.rewards) :]
        histogram, (asked, *losses) = rest[: len(HISTOGRAM) - 1], rest[len(HISTOGRAM) - 1 :]
        named = dict(zip(SUMS, losses, strict=True))
        self.kl.update(first / count, int(count))
        return {
            "step": step + 1,
            "steps": config.steps,
            "loss": named["loss"],
            "policy_loss": named["policy_loss"],
            "value_loss": named["value_loss"],
            "grad_norm": changed.grad_norm,
            "update_ratio": changed.update_ratio,
            "learning_rate": rate,
            "reward": sum(w * r / count for w, r in zip(config.rewards.values(), raw, strict=True)),
            "rewards": {name: value / count for name, value in zip(config.rewards, raw, strict=True)},
            "normalised_reward": reward / count,
            "normalised_deviation": max(0.0, squares / count - (reward / count) ** 2) ** 0.5,
            "reward_histogram": [int(number) for number in histogram],  # of normalised ones, see HISTOGRAM
            "repeated_share": repeated / count,
            "kl": divergence / tokens,
            "kl_coefficient": self.kl.coefficient,
            "entropy": named["entropy"] / tokens,
            "ratio": named["ratio"] / tokens,
            "clipped_share": named["clipped"] / tokens,
            "answer_tokens": tokens / count,
            "unended_share": unended / count,
            "tokens": int(tokens + asked),
            "supervised": int(tokens),
            "slots": int(tokens + asked),
            "tokens_per_second": round((tokens + asked) / (after_update - start), 1),
            "rollout_seconds": round(after_rollout - start, 3),
            "scoring_seconds": round(after_scoring - after_rollout, 3),
            "update_seconds": round(after_update - after_scoring, 3),
            "activation_max": engine.max(engine.activations.take()),
            "seconds": round(time.monotonic() - start, 3),
        }

    def draw(self, step: int) -> tuple[list[Prompt], list[Answer], torch.Tensor]:
        """This rank's share of a round: prompts, answers, and which prompt of the round each belongs to."""
        numbers = self.order.round(step)
        share = len(numbers) // self.engine.world
        places = range(self.context.rank * share, (self.context.rank + 1) * share)
        prompts = [self.prompts[numbers[place]] for place in places]
        self.sampler.load(without_value_head(self.engine.gather()))
        seed = int(np.random.SeedSequence([self.config.seed, step, self.context.rank]).generate_state(1)[0])
        answers = self.sampler.draw([prompt.ids for prompt in prompts], seed, self.config.micro_batch)
        return prompts, answers, torch.tensor([place // self.config.samples for place in places])

    def score(self, drawn: tuple[list[Prompt], list[Answer], torch.Tensor]) -> Round:
        """Rewards of answers drawn, and what they say of every token."""
        prompts, answers, groups = drawn
        config = self.config
        texts = self.tokenizer.batch_decode([answer.ids for answer in answers], skip_special_tokens=True)
        raw = self.scorer(prompts, [answer.ids for answer in answers], texts)
        reward = self._normalised(prompts, raw, answers)
        width = max(len(answer.ids) for answer in answers)
        mask = torch.tensor([[place < len(answer.ids) for place in range(width)] for answer in answers])
        old, values, reference = (torch.zeros(mask.shape) for _ in range(3))
        for rows in self._micro_batches(range(len(answers))):
            batch, here = self._batch(prompts, answers, rows), mask[rows]
            logits = self._look(batch)
            labels = batch.labels[batch.labels != IGNORED]
            old[rows] = spread(token_log_probs(logits[:, :-1], labels, config.temperature), here)
            values[rows] = spread(logits[:, -1].float(), here)
            with torch.inference_mode():
                found = self.reference(input_ids=batch.input_ids, position_ids=batch.position_ids, use_cache=False)
            other = token_log_probs(found.logits[batch.labels != IGNORED], labels, config.temperature)
            reference[rows] = spread(other, here)
        advantages, returns = self._advantages(reward, groups, mask, old, reference, values)
        return Round(prompts, answers, groups, raw, reward, mask, old, reference, values, advantages, returns)

    def _normalised(self, prompts: list[Prompt], raw: np.ndarray, answers: list[Answer]) -> torch.Tensor:
        """Each reward normalised by domain over the answers of all ranks, then weighted: (answers,)."""
        told = json.dumps({"raw": raw.tolist(), "domains": [prompt.domain for prompt in prompts]})
        everyone = [json.loads(text) for text in self.engine.tell_all(told)]
        total = np.zeros(sum(len(part["raw"]) for part in everyone))
        for column, (name, weight) in enumerate(self.config.rewards.items()):
            values = np.array([row[column] for part in everyone for row in part["raw"]])
            domains = [f"{name}/{domain}" for part in everyone for domain in part["domains"]]
            total += weight * self.normaliser(values, domains)
        first = sum(len(part["raw"]) for part in everyone[: self.context.rank])
        mine = total[first : first + len(raw)] / sum(self.config.rewards.values())
        return torch.tensor(mine - self.config.unended * np.array([not a.ended for a in answers])).float()

    def _advantages(
        self, reward: torch.Tensor, groups: torch.Tensor, mask: torch.Tensor, old: torch.Tensor,
        reference: torch.Tensor, values: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """Advantages and returns by token. PPO takes the divergence off the reward, GRPO has it in its loss."""
        if self.config.method == "grpo":
            by_answer = group_advantages(reward, groups)[:, None].expand(mask.shape)
            return torch.where(mask, by_answer, 0.0), torch.zeros(mask.shape)
        rewards = torch.where(mask, -self.kl.coefficient * (old - reference), 0.0)
        rewards[torch.arange(len(reward)), mask.sum(1) - 1] += reward
        # An answer that was cut off is worth what it got: there is no telling how it would have gone on.
        advantages, returns = gae(rewards, values, mask, discount=self.config.discount, decay=self.config.decay)
        count, total = self.engine.sum(float(mask.sum()), float(advantages.double().sum()))
        (squares,) = self.engine.sum(float((advantages - total / count)[mask].double().square().sum()))
        return whitened(advantages, total / count, (squares / count) ** 0.5, mask), returns

    def update(self, done: Round, shuffle: np.random.Generator, rate: float) -> tuple[Any, dict[str, float]]:
        """One optimizer step over all answers of the round. Returns what it did, and this rank's sums."""
        config, engine = self.config, self.engine
        (tokens,) = engine.sum(float(done.mask.sum()))
        sums = dict.fromkeys(SUMS, 0.0)
        for rows in self._micro_batches(shuffle.permutation(len(done.answers)).tolist()):
            batch, here = self._batch(done.prompts, done.answers, rows), done.mask[rows]
            logits, labels = engine.predict(batch)
            new = spread(token_log_probs(logits[:, :-1], labels, config.temperature), here)
            policy, counted = clipped_policy_loss(
                new, done.old[rows], done.advantages[rows], here, tokens, clip=config.clip
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
                loss = loss + self.kl.coefficient * torch.where(here, divergence, 0.0).sum() / tokens
                loss = loss + 0 * logits[:, -1].sum()  # the critic takes part in every backward pass, under ZeRO-3
            engine.backward(loss)
            found = {"loss": loss, "policy_loss": policy, "value_loss": value, "entropy": spare}
            for name, item in {**{name: float(item.detach()) for name, item in found.items()}, **counted}.items():
                sums[name] += item
        return engine.step(rate), sums

    def _look(self, batch: Batch) -> torch.Tensor:
        """Logits and values of the answers' tokens as the engine computes them: (tokens, vocab + 1)."""
        kept: list[torch.Tensor] = []

        def keep(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            kept.append(logits)
            return torch.zeros(len(labels))

        self.engine.evaluate(batch, keep)
        return kept[0]

    def _micro_batches(self, rows: Sequence[int]) -> list[list[int]]:
        size = self.config.micro_batch
        return [list(rows[start : start + size]) for start in range(0, len(rows), size)]

    def _batch(self, prompts: list[Prompt], answers: list[Answer], rows: list[int]) -> Batch:
        """Answers with their prompts; what is learnt are the answers' tokens."""
        sequences = []
        for row in rows:
            ids = np.concatenate([prompts[row].ids, answers[row].ids])
            chosen = np.arange(len(ids)) >= len(prompts[row].ids)
            sequences.append(Row(ids, np.arange(len(ids)), chosen))
        return collate_tight(sequences, self.tokenizer.pad_token_id)


HISTOGRAM = [-np.inf, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, np.inf]  # edges of normalised rewards
SUMS = ("loss", "policy_loss", "value_loss", "entropy", "ratio", "clipped")  # over tokens, of an update


def spread(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Values of chosen tokens in their order, (tokens,), as (answers, longest): 0 where not `mask`."""
    return torch.zeros(mask.shape, dtype=values.dtype).masked_scatter(mask, values)
