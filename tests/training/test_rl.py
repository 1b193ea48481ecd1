"""Learning from rewards: every formula against NumPy, or against what it must come to."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.training.losses import preference_losses
from tasks.training.rl.advantages import gae, group_advantages, whitened
from tasks.training.rl.kl import AdaptiveKl, Estimator, kl_estimate
from tasks.training.rl.normaliser import RewardNormaliser
from tasks.training.rl.policy_loss import clipped_policy_loss, clipped_value_loss, entropy, token_log_probs
from tasks.training.rl.replay import Entry, ReplayBuffer, importance_weights, nearness, segmented_error
from tests.oracles import rl

seeds = st.integers(0, 2**32 - 1)


def tensors(seed: int, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    noise = np.random.default_rng(seed)
    return [torch.tensor(noise.normal(size=shape)) for shape in shapes]


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(1, 9), st.floats(0, 1), st.floats(0, 1))
def test_gae_equals_the_sum_written_out(seed, length, discount, decay):
    rewards, values, beyond = tensors(seed, (3, length), (3, length), (3,))
    mask = torch.tensor(np.random.default_rng(seed).random((3, length)) < 0.7)
    found, returns = gae(rewards, values, mask, discount=discount, decay=decay, beyond=beyond)
    expected = rl.gae(rewards.numpy(), values.numpy(), mask.numpy(), discount, decay, beyond.numpy())
    np.testing.assert_allclose(found, expected, atol=1e-12)
    np.testing.assert_allclose(returns, np.where(mask, expected + values.numpy(), 0), atol=1e-12)


def test_without_decay_an_advantage_is_what_followed_less_what_was_expected():
    rewards, values = torch.tensor([[0.0, 0.0, 1.0, 9.0]]), torch.tensor([[0.2, 0.5, 0.7, 9.0]])
    mask = torch.tensor([[True, True, True, False]])
    found, returns = gae(rewards, values, mask, decay=1.0)
    assert found.tolist() == [pytest.approx([0.8, 0.5, 0.3, 0.0])]
    assert returns.tolist() == [pytest.approx([1.0, 1.0, 1.0, 0.0])]


@settings(max_examples=40, deadline=None)
@given(seeds, st.floats(0.05, 0.5))
def test_policy_loss_and_gradient(seed, clip):
    new, old, advantages = tensors(seed, (4, 6), (4, 6), (4, 6))
    mask = torch.tensor(np.random.default_rng(seed).random((4, 6)) < 0.7)
    new.requires_grad_()
    loss, sums = clipped_policy_loss(new, old, advantages, mask, 17, clip=clip)
    loss.backward()
    assert new.grad is not None
    expected, gradient = rl.policy_loss(
        new.detach().numpy(), old.numpy(), advantages.numpy(), mask.numpy(), 17, clip
    )
    assert loss.item() == pytest.approx(expected, abs=1e-12)
    np.testing.assert_allclose(new.grad, gradient, atol=1e-12)
    assert 0 <= sums["clipped"] <= mask.sum()


def test_at_the_first_step_the_ratio_is_one_and_the_kl_nought():
    logits = tensors(0, (2, 5, 11))[0]
    labels = torch.randint(0, 11, (2, 5), generator=torch.Generator().manual_seed(0))
    drawn = token_log_probs(logits, labels, 0.8)
    mask = torch.ones(2, 5, dtype=torch.bool)
    again = token_log_probs(logits, labels, 0.8)
    _, sums = clipped_policy_loss(again, drawn, torch.ones(2, 5), mask, 10)
    assert sums == {"ratio": 10.0, "clipped": 0.0}
    for estimator in ("k1", "k2", "k3"):
        assert kl_estimate(again, drawn, estimator).abs().max() == 0
    other = token_log_probs(logits, labels, 1.0)
    assert (other - drawn).abs().max() > 0.01, "another temperature is another policy"


def test_log_probs_and_entropy_are_those_of_the_distribution_drawn_from():
    logits = tensors(3, (7, 13))[0]
    labels = torch.arange(7)
    distribution = torch.distributions.Categorical(logits=logits.float() / 0.7)
    torch.testing.assert_close(token_log_probs(logits, labels, 0.7), distribution.log_prob(labels))
    torch.testing.assert_close(entropy(logits, 0.7), distribution.entropy())


@settings(max_examples=30, deadline=None)
@given(seeds)
def test_value_loss(seed):
    new, old, returns = tensors(seed, (3, 4), (3, 4), (3, 4))
    mask = torch.tensor(np.random.default_rng(seed).random((3, 4)) < 0.7)
    found = clipped_value_loss(new, old, returns, mask, 9, clip=0.3)
    expected = rl.value_loss(new.numpy(), old.numpy(), returns.numpy(), mask.numpy(), 9, 0.3)
    assert found.item() == pytest.approx(expected, abs=1e-12)


def test_nothing_chosen_gives_no_loss_and_no_gradient():
    new = torch.zeros(2, 3, requires_grad=True)
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    unlike = torch.full((2, 3), float("-inf"))
    loss, _ = clipped_policy_loss(new, unlike, torch.ones(2, 3), nothing, 0)
    (loss + clipped_value_loss(new, torch.zeros(2, 3), torch.ones(2, 3), nothing, 0)).backward()
    assert loss.item() == 0
    assert new.grad is not None and new.grad.abs().max() == 0


def test_estimators_come_to_the_divergence():
    policy, reference = tensors(5, (40,), (40,))
    policy, reference = policy.log_softmax(0), (policy + 0.3 * reference).log_softmax(0)
    exact = float((policy.exp() * (policy - reference)).sum())
    drawn = torch.multinomial(policy.exp(), 200_000, replacement=True, generator=torch.Generator().manual_seed(1))
    allowed: dict[Estimator, float] = {"k1": 0.002, "k3": 0.002, "k2": 0.1 * exact}
    for estimator, tolerance in allowed.items():
        samples = kl_estimate(policy[drawn], reference[drawn], estimator)
        assert samples.mean().item() == pytest.approx(exact, abs=tolerance)
    assert kl_estimate(policy[drawn], reference[drawn], "k3").min() >= 0
    assert kl_estimate(policy[drawn], reference[drawn], "k1").min() < 0


def test_the_coefficient_follows_the_kl():
    control = AdaptiveKl(0.1, target=2.0, horizon=100)
    control.update(2.0, 10)
    assert control.coefficient == pytest.approx(0.1)
    control.update(40.0, 10)
    assert control.coefficient == pytest.approx(0.1 * 1.02), "its error is cut at 20%"
    control.update(0.0, 10)
    assert control.coefficient == pytest.approx(0.1 * 1.02 * 0.98)
    again = AdaptiveKl(9.0, target=2.0, horizon=100)
    again.restore(control.state())
    assert again.coefficient == control.coefficient
    fixed = AdaptiveKl(0.1)
    fixed.update(99.0, 10)
    assert fixed.coefficient == 0.1


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(1, 12))
def test_group_advantages(seed, count):
    noise = np.random.default_rng(seed)
    scores, groups = noise.normal(size=count), noise.integers(0, 3, count)
    found = group_advantages(torch.tensor(scores), torch.tensor(groups))
    np.testing.assert_allclose(found, rl.group_advantages(scores, groups), atol=1e-9)


def test_a_group_of_equal_scores_teaches_nothing():
    scores = torch.tensor([0.1, 0.1, 0.1, 5.0, 1.0, 3.0], dtype=torch.float64)
    groups = torch.tensor([0, 0, 0, 1, 2, 2])
    assert group_advantages(scores, groups).tolist() == [0, 0, 0, 0, -1, 1]
    assert group_advantages(scores, groups, by_deviation=False).tolist()[-2:] == [-1, 1]


def test_whitening_uses_the_moments_given():
    values, mask = torch.tensor([1.0, 3.0, 99.0]), torch.tensor([True, True, False])
    assert whitened(values, 2.0, 1.0, mask).tolist() == [-1, 1, 0]


@settings(max_examples=40, deadline=None)
@given(st.floats(-20, 20), st.floats(-20, 20), st.floats(0, 3), st.booleans(), st.floats(-50, 50))
def test_preference_loss_is_bradley_terry_and_knows_no_shift(chosen, rejected, margin, tie, shift):
    def loss(by: float) -> float:
        better, worse = (torch.tensor([score + by], dtype=torch.float64) for score in (chosen, rejected))
        return preference_losses(better, worse, torch.tensor([margin]), torch.tensor([tie])).item()

    assert loss(0) == pytest.approx(rl.preference_loss(chosen, rejected, margin, tie), rel=1e-4, abs=1e-6)
    assert loss(shift) == pytest.approx(loss(0), rel=1e-4, abs=1e-5)


def test_an_ordered_pair_still_has_a_gradient():
    chosen = torch.tensor([3.0], requires_grad=True)
    preference_losses(chosen, torch.tensor([0.0]), torch.zeros(1), torch.tensor([False])).sum().backward()
    assert chosen.grad is not None and chosen.grad.item() == pytest.approx(-1 / (1 + np.exp(3)), rel=1e-5)


def test_rewards_of_any_scale_come_to_one():
    noise = np.random.default_rng(0)
    normalise = RewardNormaliser(clip=5)
    seen: dict[str, list[float]] = {"small": [], "large": []}
    for _ in range(60):
        raw = np.concatenate([noise.normal(3, 1, 16), noise.normal(-400, 100, 16)])
        domains = ["small"] * 16 + ["large"] * 16
        for domain, value in zip(domains, normalise(raw, domains), strict=True):
            seen[domain].append(value)
    for values in seen.values():
        assert np.std(values[320:]) == pytest.approx(1, abs=0.1)
        assert abs(np.mean(values[320:])) < 0.1
    again = RewardNormaliser(clip=5)
    again.restore(normalise.state())
    assert again(np.array([1e9]), ["small"]).tolist() == [5.0]
    assert RewardNormaliser()(np.array([7.0, 7.0]), ["a", "a"]).tolist() == [0, 0]
    with pytest.raises(ValueError, match="no finite number"):
        normalise(np.array([np.nan]), ["small"])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30), st.integers(1, 29))
def test_moments_do_not_depend_on_the_batches(scores, cut):
    whole, parts = RewardNormaliser(), RewardNormaliser()
    whole(np.array(scores), ["a"] * len(scores))
    for some in (scores[:cut], scores[cut:]):
        if some:
            parts(np.array(some), ["a"] * len(some))
    assert parts.state()["a"] == pytest.approx(whole.state()["a"], rel=1e-9, abs=1e-3)


def test_a_long_answer_is_judged_by_its_worst_block():
    assert segmented_error(np.full(512, -2.0)) == 2
    errors = np.zeros(513)
    errors[512] = 7
    assert segmented_error(errors) == 7, "513 tokens are two blocks"
    errors = np.zeros(512)
    errors[511] = 7
    assert segmented_error(errors) == pytest.approx(7 / 512), "512 are one"
    assert segmented_error(np.zeros(0)) == 0


def test_draws_follow_the_priorities_and_stay_in_their_domain():
    buffer = ReplayBuffer(alpha=0.6, staleness=3)
    priorities = np.array([0.0, 0.5, 1.0, 2.0, 4.0])
    for number, priority in enumerate(priorities):
        buffer.add("code", Entry(f"code-{number}", float(priority), step=5))
        buffer.add("law", Entry(f"law-{number}", 100.0, step=5))
    drawn = buffer.draw("code", 10_000, seed=0, step=6)
    assert {entry.key[:4] for entry in drawn} == {"code"}, "0 foreign draws in 10,000"
    counts = np.array([sum(entry.key == f"code-{number}" for entry in drawn) for number in range(5)])
    expected = priorities**0.6 / (priorities**0.6).sum() * 10_000
    assert counts[0] == 0
    chi_square = ((counts[1:] - expected[1:]) ** 2 / expected[1:]).sum()
    assert chi_square < 16.27, "three degrees of freedom, p = 0.001"
    again = ReplayBuffer(alpha=0.6, staleness=3)
    again.restore(buffer.state())
    assert [e.key for e in again.draw("code", 9, 1, 7)] == [e.key for e in buffer.draw("code", 9, 1, 7)]
    assert buffer.draw("code", 5, 0, step=9) == [] and len(buffer) == 0, "older than it may be"
    assert buffer.draw("medicine", 5, 0, step=6) == []


def test_what_a_buffer_refuses_and_forgets():
    buffer = ReplayBuffer(capacity=2)
    with pytest.raises(ValueError, match="priority nan of a"):
        buffer.add("code", Entry("a", float("nan"), 0))
    for key in ("a", "b", "b", "c"):
        buffer.add("code", Entry(key, 0.0, 0))
    assert {entry.key for entry in buffer.draw("code", 50, 0, 0)} == {"b", "c"}


def test_importance_weights_are_bounded_and_nearness_is_a_cosine():
    weights = importance_weights(np.array([0.0, 800.0, -1.0]), np.array([0.0, 0.0, 0.0]), 2.0)
    assert weights.tolist() == pytest.approx([1, 2, np.exp(-1)])
    assert nearness(np.array([1.0, 1.0]), np.array([1.0, 0.0])) == pytest.approx(0.5**0.5)
    assert nearness(np.array([-1.0, 0.0]), np.array([1.0, 0.0])) == 0
    assert nearness(np.zeros(2), np.array([1.0, 0.0])) == 0


@pytest.mark.parametrize("method", ["ppo", "grpo"])
def test_a_bandit_is_learnt(method):
    """Four arms with known rewards: the policy ends on the best one, from equal chances."""
    rewards = torch.tensor([0.1, 0.3, 1.0, 0.5])
    logits = torch.zeros(4, requires_grad=True)
    value = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.Adam([logits, value], lr=0.1)
    chance = torch.Generator().manual_seed(0)
    for _ in range(60):
        with torch.no_grad():
            arms = torch.multinomial(logits.softmax(0), 32, replacement=True, generator=chance)
            old = logits.log_softmax(0)[arms][:, None]
        mask, scores = torch.ones(32, 1, dtype=torch.bool), rewards[arms]
        if method == "ppo":
            known = value.detach().expand(32, 1)
            advantages, returns = gae(scores[:, None], known, mask)
        else:
            advantages = group_advantages(scores, torch.zeros(32))[:, None]
        for _ in range(3):
            loss, _ = clipped_policy_loss(logits.log_softmax(0)[arms][:, None], old, advantages, mask, 32)
            if method == "ppo":
                loss = loss + clipped_value_loss(value.expand(32, 1), known, returns, mask, 32)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert logits.softmax(0)[2] > 0.9
