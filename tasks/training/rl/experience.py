"""A round's experience: answers drawn from the policy as it is, scored, and what they say of every token."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tasks.training.data import Batch
from tasks.training.engine import Engine
from tasks.training.losses import IGNORED
from tasks.training.recipe import RlhfStage
from tasks.training.rl.advantages import gae, group_advantages, whitened
from tasks.training.rl.kl import AdaptiveKl
from tasks.training.rl.memory import Memory
from tasks.training.rl.normaliser import RewardNormaliser
from tasks.training.rl.policy import without_critic
from tasks.training.rl.policy_loss import token_log_probs
from tasks.training.rl.prompts import Prompt, PromptOrder
from tasks.training.rl.replay import importance_weights
from tasks.training.rl.rollout import Answer, Sampler
from tasks.training.rl.rounds import Round, batch, joined, mask_of, micro_batches, spread
from tasks.training.rl.scoring import Scorer


class Experience:
    """Makes a rank's rounds. What it holds is the same on every rank, but for the answers each rank draws."""

    def __init__(
        self,
        engine: Engine,
        rank: int,
        sampler: Sampler,
        reference: Any,
        scorer: Scorer,
        prompts: Sequence[Prompt],
        tokenizer: Any,
    ) -> None:
        assert isinstance(engine.config, RlhfStage)
        self.config: RlhfStage = engine.config
        self.engine, self.rank, self.sampler, self.reference = engine, rank, sampler, reference
        self.scorer, self.prompts, self.tokenizer, self.pad = scorer, prompts, tokenizer, tokenizer.pad_token_id
        self.order = PromptOrder(len(prompts), self.config)
        self.kl = AdaptiveKl(self.config.kl.coefficient, self.config.kl.target, self.config.kl.horizon)
        self.normaliser = RewardNormaliser(self.config.reward_clip)
        self.memory = Memory(self.config.replay, self.config.seed) if self.config.replay else None

    def parts(self) -> dict[str, Any]:
        """What goes along with a checkpoint, by name."""
        found = {"kl": self.kl, "normaliser": self.normaliser, "memory": self.memory}
        return {name: part for name, part in found.items() if part is not None}

    def draw(self, step: int) -> tuple[list[Prompt], list[int], list[Answer], torch.Tensor]:
        """This rank's share of a round: prompts and their numbers, answers, which prompt of the round each is to."""
        numbers = self.order.round(step)
        if self.memory:
            numbers = self.memory.choose_prompts(numbers, [self.prompts[number].domain for number in numbers], step)
        share = len(numbers) * self.config.samples // self.engine.world
        places = range(self.rank * share, (self.rank + 1) * share)
        mine = [numbers[place // self.config.samples] for place in places]
        prompts = [self.prompts[number] for number in mine]
        self.sampler.load(without_critic(self.engine.gather()))
        seed = int(np.random.SeedSequence([self.config.seed, step, self.rank]).generate_state(1)[0])
        answers = self.sampler.draw([prompt.ids for prompt in prompts], seed, self.config.micro_batch)
        return prompts, mine, answers, torch.tensor([place // self.config.samples for place in places])

    def score(self, prompts: list[Prompt], numbers: list[int], answers: list[Answer], groups: torch.Tensor) -> Round:
        """Rewards of answers drawn, and what they say of every token. Advantages are not whitened yet."""
        texts = self.tokenizer.batch_decode([answer.ids for answer in answers], skip_special_tokens=True)
        raw = self.scorer(prompts, [answer.ids for answer in answers], texts)
        reward = self._normalised(prompts, raw, answers)
        by_answer = group_advantages(reward, groups) if self.config.method == "grpo" else None
        return self._looked_at(prompts, answers, reward, by_answer, raw)

    def _looked_at(
        self, prompts: list[Prompt], answers: list[Answer], reward: torch.Tensor, by_answer: torch.Tensor | None,
        raw: np.ndarray,
    ) -> Round:  # fmt: skip
        """What policy, critic and reference say of every token of answers whose reward is known."""
        mask, pieces = mask_of(answers), []
        old, values, reference = (torch.zeros(mask.shape) for _ in range(3))
        for rows in micro_batches(self.config, range(len(answers))):
            some, here = batch([prompts[r] for r in rows], [answers[r] for r in rows], self.pad), mask[rows]
            logits, wanted = self._look(some), some.labels != IGNORED
            labels = some.labels[wanted]
            old[rows] = spread(token_log_probs(logits[:, :-1], labels, self.config.temperature), here)
            values[rows] = spread(logits[:, -1].float(), here)
            with torch.inference_mode():
                found = self.reference(
                    input_ids=some.input_ids, position_ids=some.position_ids, use_cache=False,
                    output_hidden_states=self.memory is not None,
                )  # fmt: skip
            other = token_log_probs(found.logits[wanted], labels, self.config.temperature)
            reference[rows] = spread(other, here)
            if self.memory:
                states = found.hidden_states[-1].float() * wanted[..., None]
                pieces.append((states.sum(1) / wanted.sum(1, keepdim=True)).numpy())
        advantages, returns, errors = self._advantages(reward, by_answer, mask, old, reference, values)
        return Round(
            prompts, answers, raw, reward, mask, old, reference, values, advantages, returns, errors,
            weights=torch.where(mask, 1.0, 0.0),
            embeddings=np.concatenate(pieces) if pieces else np.zeros((len(answers), 0)),
        )  # fmt: skip

    def with_replayed(self, done: Round, numbers: list[int], step: int) -> Round:
        """The round, with stale answers beside its own where the recipe says so; and advantages whitened over all."""
        replay, learnt = self.config.replay, done
        if self.memory and replay:
            stale = self._recalled(done, step) if replay.answers else None
            learnt = joined(done, stale) if stale else done
            self._remember(done, numbers, step)
        if self.config.method == "ppo":
            learnt.advantages = self._whitened(learnt)
        return learnt

    def _recalled(self, done: Round, step: int) -> Round | None:
        """This rank's share of the answers of earlier rounds that are learnt from again."""
        assert self.memory and self.config.replay
        share = round(self.config.replay.answers * len(done.answers))
        domains = [name for text in self.engine.tell_all(json.dumps([p.domain for p in done.prompts]))
                   for name in json.loads(text)]  # fmt: skip
        told = self.memory.recall(domains, share * self.engine.world, step)
        told = told[self.rank * share : (self.rank + 1) * share]
        if not told:
            return None
        answers = [Answer(np.array(item["ids"], np.int64), item["ended"]) for item in told]
        reward, by_answer = (torch.tensor([item[name] for item in told]) for name in ("reward", "advantage"))
        found = self._looked_at(
            [self.prompts[item["prompt"]] for item in told], answers, reward,
            by_answer if self.config.method == "grpo" else None, np.zeros((len(told), len(self.config.rewards))),
        )  # fmt: skip
        drawn = np.concatenate([np.array(item["log_probs"], np.float32) for item in told])
        weights = importance_weights(found.old[found.mask].numpy(), drawn, self.config.replay.bound)
        found.weights = spread(torch.from_numpy(weights).float(), found.mask)
        return found

    def _remember(self, done: Round, numbers: list[int], step: int) -> None:
        """Tell every rank this one's answers of the round, and keep all of them."""
        assert self.memory
        rows = [
            {
                "prompt": numbers[row],
                "domain": done.prompts[row].domain,
                "ids": answer.ids.tolist(),
                "ended": answer.ended,
                "log_probs": done.old[row][done.mask[row]].tolist(),
                "reward": float(done.reward[row]),
                "advantage": float(done.advantages[row, 0]),
                "errors": done.errors[row][done.mask[row]].tolist(),
                "embedding": done.embeddings[row].tolist(),
            }
            for row, answer in enumerate(done.answers)
        ]
        self.memory.remember(
            [row for text in self.engine.tell_all(json.dumps(rows)) for row in json.loads(text)], step
        )

    def _normalised(self, prompts: list[Prompt], raw: np.ndarray, answers: list[Answer]) -> torch.Tensor:
        """Each reward normalised by domain over the answers of all ranks, then weighted: (answers,)."""
        told = json.dumps({"raw": raw.tolist(), "domains": [prompt.domain for prompt in prompts]})
        everyone = [json.loads(text) for text in self.engine.tell_all(told)]
        total = np.zeros(sum(len(part["raw"]) for part in everyone))
        for column, (name, weight) in enumerate(self.config.rewards.items()):
            values = np.array([row[column] for part in everyone for row in part["raw"]])
            domains = [f"{name}/{domain}" for part in everyone for domain in part["domains"]]
            total += weight * self.normaliser(values, domains)
        first = sum(len(part["raw"]) for part in everyone[: self.rank])
        mine = total[first : first + len(raw)] / sum(self.config.rewards.values())
        return torch.tensor(mine - self.config.unended * np.array([not a.ended for a in answers])).float()

    def _advantages(
        self, reward: torch.Tensor, by_answer: torch.Tensor | None, mask: torch.Tensor, old: torch.Tensor,
        reference: torch.Tensor, values: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
        """Advantages, returns and TD errors by token. PPO takes the divergence off the reward, GRPO, whose advantages
        are known `by_answer`, has it in its loss."""
        if by_answer is not None:
            known = torch.where(mask, by_answer[:, None].expand(mask.shape), 0.0)
            return known, torch.zeros(mask.shape), known
        rewards = torch.where(mask, -self.kl.coefficient * (old - reference), 0.0)
        rewards[torch.arange(len(reward)), mask.sum(1) - 1] += reward
        # An answer that was cut off is worth what it got: there is no telling how it would have gone on.
        advantages, returns = gae(rewards, values, mask, discount=self.config.discount, decay=self.config.decay)
        errors, _ = gae(rewards, values, mask, discount=self.config.discount, decay=0.0)
        return advantages, returns, errors

    def _whitened(self, done: Round) -> torch.Tensor:
        """Advantages less their mean over their deviation, both over the tokens of all ranks."""
        advantages, mask = done.advantages, done.mask
        count, total = self.engine.sum(float(mask.sum()), float(advantages.double().sum()))
        (squares,) = self.engine.sum(float((advantages - total / count)[mask].double().square().sum()))
        return whitened(advantages, total / count, (squares / count) ** 0.5, mask)

    def _look(self, some: Batch) -> torch.Tensor:
        """Logits and values of the answers' tokens as the engine computes them: (tokens, vocab + 1)."""
        kept: list[torch.Tensor] = []

        def keep(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            kept.append(logits)
            return torch.zeros(len(labels))

        self.engine.evaluate(some, keep)
        return kept[0]
