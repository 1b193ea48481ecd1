"""DeepSpeed's configuration of a stage. Light: a recipe can be checked without an engine."""

from typing import Any

from tasks.training.recipe import TrainedStage

GATHERED_BELOW = 10_000  # parameters with fewer elements (norms) are not split


def deepspeed_config(config: TrainedStage) -> dict[str, Any]:
    """DeepSpeed's configuration of a stage. Who calls `Engine.step` owns the accumulation: any number of backwards."""
    optimizer = config.optimizer
    return {
        "train_micro_batch_size_per_gpu": config.micro_batch,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": optimizer.clip_norm,
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": optimizer.learning_rate,
                "betas": [optimizer.beta1, optimizer.beta2],
                "weight_decay": optimizer.weight_decay,
                "torch_adam": True,
            },
        },
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": GATHERED_BELOW, **_zero(config)},
        "bf16": {"enabled": config.precision == "bf16"},
        "fp16": {"enabled": config.precision == "fp16", "initial_scale_power": 16, "loss_scale_window": 500},
        "data_types": {"grad_accum_dtype": "fp32"},
        "steps_per_print": 2**31,
        **_layout(config),
    }


def _zero(config: TrainedStage) -> dict[str, Any]:
    """What of ZeRO changes on a large machine."""
    shape = config.parallel
    if shape is None:
        return {}
    host = {"device": "cpu", "pin_memory": True}
    return {
        "stage": shape.zero,
        "overlap_comm": shape.overlap,
        "contiguous_gradients": True,
        **({"offload_optimizer": host} if shape.offload != "none" else {}),
        **({"offload_param": host} if shape.offload == "all" else {}),
    }


def _layout(config: TrainedStage) -> dict[str, Any]:
    """Tensor, sequence and pipeline parallelism."""
    shape = config.parallel
    if shape is None:
        return {}
    tensor = {"autotp_size": shape.tensor, "tp_overlap_comm": shape.overlap, "preset_model": "llama"}
    return {
        **({"tensor_parallel": tensor} if shape.tensor > 1 else {}),
        **({"sequence_parallel_size": shape.sequence} if shape.sequence > 1 else {}),
        **({"pipeline": {"stages": shape.pipeline}} if shape.pipeline > 1 else {}),
    }
