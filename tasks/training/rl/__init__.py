"""The mathematics of learning from rewards: advantages, losses, KL control, normalised rewards, prioritised replay."""
