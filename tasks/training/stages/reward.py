"""Stage *reward*: a tuned model and preference pairs of a domain → a model that scores answers."""

import shutil
from typing import Any

from tasks.corpus.artifact import read_artifact
from tasks.tokens.documents import fraction
from tasks.tokens.tokenizer import load_tokenizer
from tasks.training.companions import HeldOut
from tasks.training.context import Context
from tasks.training.data import Loader
from tasks.training.engine import Engine, join_ranks
from tasks.training.loop import train
from tasks.training.peak import rate_share, with_peak
from tasks.training.preferences.packing import pack_pairs
from tasks.training.preferences.pairs import Pair, read_preferences
from tasks.training.recipe import RewardStage
from tasks.training.reward_model import export_reward_model, with_score_head


def run(context: Context) -> None:
    """Fit the parent with a score head, train it on packed pairs, keep the best, export and publish."""
    assert isinstance(context.spec.config, RewardStage)
    join_ranks(context)

    parent, ancestor = context.parent("model"), read_artifact(context.spec.parents["model"].uri)
    config = with_peak(context.spec.config, ancestor)
    tokenizer, criteria = load_tokenizer(parent), list(config.criteria)
    read = read_preferences(
        context.spec.data["preferences"].uri, domain=config.domain, heldout_share=config.heldout_share
    )
    counts = read.counts
    train_pairs = pack_pairs(most(read.splits["train"], config), tokenizer, criteria, config.sequence_length, counts)
    unseen = pack_pairs(read.splits["heldout"], tokenizer, criteria, config.sequence_length, counts)
    loader = Loader(train_pairs, config, rank=context.rank, pad=tokenizer.pad_token_id, world=context.ranks)

    engine = Engine(with_score_head(parent, criteria, config.seed), config)
    heldout = HeldOut(
        {"pairs": unseen}, config, rank=context.rank, pad=tokenizer.pad_token_id, losses_of=unseen.losses
    )
    checkpoints = train(context, engine, loader, [heldout], tokenizer.decode, train_pairs.losses)
    if heldout.best != max(heldout.losses):
        checkpoints.load(heldout.best)

    state = engine.gather()
    if context.first:
        shutil.rmtree(context.output, ignore_errors=True)
        export_reward_model(state, parent, criteria, tokenizer, context.output)
        context.publish(
            "reward",
            {
                **context.summary(),
                "peak_learning_rate": config.optimizer.learning_rate,
                "parent_share": rate_share(config, ancestor),
                "pairs": len(train_pairs.pairs),
                "heldout_pairs": len(unseen.pairs),
                "synthetic_share": sum(pair.synthetic for pair in train_pairs.pairs) / len(train_pairs.pairs),
                "records": dict(counts),
                "criteria": config.criteria,
                "domain": config.domain,
                "best_step": heldout.best,
                "stopped_early": heldout.done,
            },
        )


def most(pairs: list[Pair], config: RewardStage) -> list[Pair]:
    """At most `max_pairs` of them, those whose prompts have the smallest hashes."""
    ordered: list[Any] = sorted(pairs, key=lambda pair: (fraction(pair.prompt_id, "preferences"), pair.record_id))
    return ordered[: config.max_pairs]
