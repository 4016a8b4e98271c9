"""A tiny GPT of the real megatron-core and Megatron's own arguments, optimizer and functions of checkpoints, on the CPU over gloo: what
the scripts beside it train. Only the calls to CUDA and what makes
groups of processes are stand-ins."""
import functools
import os
import random
import sys
import typing
import warnings

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

warnings.simplefilter("ignore")
if not hasattr(typing, "override"):  # Python 3.11
    typing.override = lambda f: f


# How many ranks share a tensor, and what Megatron is told besides.
CASES = {
    "classic": (2, "--ckpt-format", "torch"),
    "classic distributed": (1, "--ckpt-format", "torch", "--use-distributed-optimizer"),
    "dist": (2,),
    "dist distributed": (1, "--use-distributed-optimizer"),
}


class _Host(TorchFunctionMode):
    """Puts on the host what is asked for on a device."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        if func is torch.Tensor.type and len(args) == 1:
            return func(*args, **kwargs).replace("torch.", "torch.cuda.")
        return args[0] if func is torch.Tensor.cuda else func(*args, **kwargs)


for name, stand_in in {
    "synchronize": lambda *a: None, "current_device": lambda: "cpu", "empty_cache": lambda: None, "current_stream": lambda *a: None,
    "get_rng_state": lambda *a, **k: torch.get_rng_state(), "set_rng_state": lambda *a, **k: None, "device_count": lambda: 0,
    "manual_seed": lambda *a: None,
}.items():
    setattr(torch.cuda, name, stand_in)


class _FusedAdam(torch.optim.AdamW):
    """Counts steps by group, as Apex's does, which Megatron runs with on devices."""

    def __init__(self, params, lr, weight_decay=0.0, **_):
        super().__init__(params, lr=lr, weight_decay=weight_decay)

    def __setstate__(self, state):
        torch.optim.Optimizer.__setstate__(self, state)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for p in group["params"]:
                state = self.state[p]
                for name in ("exp_avg", "exp_avg_sq"):
                    state.setdefault(name, torch.zeros_like(p))
                state["exp_avg"].lerp_(p.grad, 0.1)
                state["exp_avg_sq"].lerp_(p.grad.square(), 0.001)
                p.addcdiv_(state["exp_avg"], state["exp_avg_sq"].sqrt() + 1e-8, value=-group["lr"])


def _share_groups(parallel_state):
    """Has one group of processes for the same ranks: Megatron makes a hundred, and gloo polls each of them a hundred times a second."""
    make, made = parallel_state.create_group, {}

    def create_group(ranks=None, timeout=None, backend=None, **kwargs):
        if backend:  # Megatron destroys these when another job begins
            return make(ranks, timeout, backend, **kwargs)
        if tuple(ranks) not in made:
            made[tuple(ranks)] = make(ranks, timeout, **kwargs)
        return made[tuple(ranks)]

    parallel_state.create_group = create_group


def start(store=None):
    """Begins a job of WORLD_SIZE ranks that meet at a file, or where their launcher says."""
    global checkpointing
    _Host().__enter__()
    where = "file://" + store if store else "env://"
    dist.init_process_group("gloo", init_method=where, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    import megatron.core.dist_checkpointing.strategies.filesystem_async as writers
    import megatron.core.optimizer as optimizers
    import megatron.core.optimizer.distrib_optimizer as distributed
    import megatron.core.parallel_state as parallel_state
    import megatron.training.checkpointing as checkpointing
    from megatron.training.argument_utils import ArgumentGroupFactory

    _share_groups(parallel_state)
    # The help of each flag, which it reads from its own sources each time that a command line is parsed: half of the time of a test.
    ArgumentGroupFactory._get_field_docstrings = lambda self, config: {}
    if "1" not in (os.environ.get("MUSTER_SOAK"), os.environ.get("TESTS_SOAK")):  # the process of a queue that is spawned imports all of this once more
        writers.get_write_results_queue = functools.partial(writers.get_write_results_queue, "fork")
    optimizers.Adam = distributed.Adam = _FusedAdam
    optimizers.USING_PYTORCH_OPTIMIZER, distributed.HAVE_APEX_OR_TE, distributed.USING_APEX_OPTIMIZER = False, True, True


class Job:
    """A model, its optimizer and scheduler, and Megatron's arguments as words of a command line."""

    def __init__(self, save, *words, tp=1):
        from megatron.core import mpu, num_microbatches_calculator, tensor_parallel
        from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
        from megatron.core.models.gpt import GPTModel
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
        from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
        from megatron.core.transformer import TransformerConfig
        from megatron.training import arguments, global_vars

        if not mpu.is_initialized() or mpu.get_tensor_model_parallel_world_size() != tp:  # groups are those of several jobs
            mpu.destroy_model_parallel()
            mpu.initialize_model_parallel(tp, 1)
        sys.argv[1:] = [
            "--num-layers", "2", "--hidden-size", "32", "--num-attention-heads", "4", "--seq-length", "16", "--max-position-embeddings", "16",
            "--micro-batch-size", "1", "--tensor-model-parallel-size", str(tp), "--save", save, "--load", save, "--bf16", *words]
        self.args = args = arguments.parse_args()
        args.padded_vocab_size, args.world_size, args.data_parallel_size = 64, dist.get_world_size(), dist.get_world_size() // tp
        args.consumed_train_samples = args.consumed_valid_samples = args.skipped_train_samples = 0
        args.use_dist_ckpt = args.ckpt_format != "torch"
        global_vars.set_args(args)
        if num_microbatches_calculator._GLOBAL_NUM_MICROBATCHES_CALCULATOR is None:
            num_microbatches_calculator.init_num_microbatches_calculator(dist.get_rank(), None, 2, 1, args.data_parallel_size)
        random.seed(7)
        torch.manual_seed(7)
        tensor_parallel.model_parallel_cuda_manual_seed(7)
        config = TransformerConfig(
            num_layers=2, hidden_size=32, num_attention_heads=4, use_cpu_initialization=True, tensor_model_parallel_size=tp,
            bf16=True, params_dtype=torch.bfloat16)
        model = GPTModel(config, get_gpt_layer_local_spec(), vocab_size=64, max_sequence_length=16).bfloat16()
        sharded = args.use_distributed_optimizer
        self.model = [DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=sharded), model)]
        self.optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=0.01, clip_grad=0.0, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=sharded), self.model)
        self.scheduler = OptimizerParamScheduler(
            self.optimizer, init_lr=0.0, max_lr=0.01, min_lr=0.0, lr_warmup_steps=10, lr_decay_steps=1000, lr_decay_style="linear",
            start_wd=0.01, end_wd=0.01, wd_incr_steps=10, wd_incr_style="constant")

    @property
    def all(self):
        return self.model, self.optimizer, self.scheduler

    def train(self):
        """A step with gradients out of the air."""
        for p in self.model[0].parameters():
            p.main_grad.copy_(torch.randn_like(p))
        self.optimizer.step()
        self.scheduler.step(1)
        random.random()

    def state(self):
        """Everything that a step of training depends on, as tensors and numbers by name."""
        state = {"model." + name: p.detach().clone() for name, p in self.model[0].named_parameters()}
        for i, optimizer in enumerate(getattr(self.optimizer, "chained_optimizers", [self.optimizer])):
            inner = optimizer.optimizer
            for j, group in enumerate(inner.param_groups):
                for k, p in enumerate(group["params"]):
                    for name, value in {"main": p, **inner.state[p]}.items():
                        state[f"optimizer.{i}.{j}.{k}.{name}"] = value.detach().clone() if isinstance(value, torch.Tensor) else value
        return {**state, "scheduler": dict(self.scheduler.state_dict()), "rng": torch.get_rng_state(), "random": random.getstate()}


def same(a, b, but=()):
    """Compares two states, but for names that begin as told."""
    assert a.keys() == b.keys(), a.keys() ^ b.keys()
    for key in a:
        if not key.startswith(tuple(but) or ("-",)):
            assert torch.equal(a[key], b[key]) if isinstance(a[key], torch.Tensor) else a[key] == b[key], key
    return True
