"""Stage *rlhf*: a tuned model, reward models and prompts → a policy that earns more, near to what it was."""

import shutil
from typing import Any

from tasks.corpus.artifact import read_artifact
from tasks.tokens.tokenizer import load_tokenizer
from tasks.training.context import Context
from tasks.training.engine import Engine, join_ranks
from tasks.training.model import export_model, load_model
from tasks.training.peak import rate_share, with_peak
from tasks.training.recipe import RlhfStage
from tasks.training.rl.experience import Experience
from tasks.training.rl.learning import Learner
from tasks.training.rl.policy import with_critic, without_critic
from tasks.training.rl.prompts import read_prompts
from tasks.training.rl.rollout import Sampler
from tasks.training.rl.scoring import Scorer

GENERATION = "Gen-0"  # what specialists are made from: a general model that learnt from rewards


def run(context: Context) -> None:
    """Give the parent a critic, let it answer, learn from the rewards, export the policy alone and publish."""
    assert isinstance(context.spec.config, RlhfStage)
    join_ranks(context)

    parent, ancestor = context.parent("model"), read_artifact(context.spec.parents["model"].uri)
    config = with_peak(context.spec.config, ancestor)
    tokenizer = load_tokenizer(parent)
    splits, counts = read_prompts(context.spec.data["instructions"].uri, config, tokenizer)
    judges = {name: read_artifact(context.spec.parents[name].uri) for name in config.reward_stages}
    scorer = Scorer(
        config,
        {name: context.parent(name) for name in judges},
        {name: judge.metrics["criteria"] for name, judge in judges.items()},
        tokenizer,
    )
    reference: Any = load_model(parent)
    reference.eval()

    engine = Engine(with_critic(parent, config.critic), config)
    sampler = Sampler(parent, config.temperature, config.new_tokens)
    experience = Experience(engine, context.rank, sampler, reference, scorer, splits["train"], tokenizer)
    Learner(context, engine, experience).run()

    state = without_critic(engine.gather())
    if context.first:
        shutil.rmtree(context.output, ignore_errors=True)
        export_model(state, load_model(parent), tokenizer, context.output)
        lines = context.lines("progress.jsonl")
        context.publish(
            "model",
            {
                **context.summary(),
                "peak_learning_rate": config.optimizer.learning_rate,
                "parent_share": rate_share(config, ancestor),
                "method": config.method,
                "generation": GENERATION,
                "prompts": len(splits["train"]),
                "records": dict(counts),
                "synthetic_share": max((judge.metrics["synthetic_share"] for judge in judges.values()), default=0.0),
                "rounds": len(lines),
                "answers": len(lines) * config.prompts * config.samples,
                "first_reward": lines[0]["reward"],
                "last_reward": lines[-1]["reward"],
                "kl": lines[-1]["kl"],
                "kl_coefficient": lines[-1]["kl_coefficient"],
            },
        )
