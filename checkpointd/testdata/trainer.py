"""A rank of two that trains with Hugging Face's Trainer: trainer.py DIRECTORY STORE ddp|deepspeed. Prints what is done; an
exception ends it."""
import gc
import os
import sys

import torch
import torch.distributed as dist

kind = sys.argv[3]
if kind == "deepspeed":
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled first
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from dlrover.trainer.torch.flash_checkpoint.hf_trainer import FlashCkptTrainer, HfDdpCheckpointer, HfDeepSpeedCheckpointer

torch.set_num_threads(1)
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
if kind == "deepspeed":
    deepspeed.init_distributed(dist_backend="gloo")
data = [{"input_ids": (t := torch.randint(0, 99, (12,), generator=torch.Generator().manual_seed(i))), "labels": t} for i in range(64)]


def make(name, kind_of=Trainer, seed=1, steps=8, callbacks=(), **more):
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=99, bos_token_id=None, eos_token_id=None, n_positions=16, n_embd=128, n_layer=2, n_head=2))
    options = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 2, "logging_steps": 1, "lr_scheduler_type": "linear", "learning_rate": 1e-2,
               "per_device_train_batch_size": 2, "report_to": [], "disable_tqdm": True, "use_cpu": True, "dataloader_pin_memory": False, "seed": 3}
    args, options = {}, options | more
    if "memory_steps" in options:
        args["memory_steps"] = options.pop("memory_steps")
    if kind == "deepspeed":
        options["deepspeed"] = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}, "zero_allow_untested_optimizer": True,
                                "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}}}
    args["args"] = TrainingArguments(output_dir=os.path.join(sys.argv[1], name), max_steps=steps, **options)
    return kind_of(model=model, train_dataset=data, eval_dataset=data[:8], callbacks=list(callbacks), **args)


class Stop(TrainerCallback):
    """Ends a training as a crash would, as far as the one that comes next can see."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 6:  # before it is saved
            raise KeyboardInterrupt


def weights(trainer):
    return {k: v.clone() for k, v in trainer.accelerator.unwrap_model(trainer.model).state_dict().items()}


def same(a, b, where=""):
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b), where
    elif isinstance(a, dict):
        assert list(a) == list(b), (where, list(a), list(b))
        for key in a:
            same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b)):
            same(x, y, f"{where}[{i}]")
    elif hasattr(a, "tolist"):
        assert a.tolist() == b.tolist(), where
    elif type(a).__module__.startswith("deepspeed"):
        same(vars(a), vars(b), where)
    else:
        assert a == b, (where, a, b)


def files(directory):
    return sorted(os.path.relpath(os.path.join(d, f), directory) for d, _, names in os.walk(directory) for f in names if f != "muster_manifest.json")


def say(what):
    dist.barrier()
    if rank == 0:
        print(f"\ndone: {what}", flush=True)


plain = make("plain")
plain.train()
want = weights(plain)
dist.barrier()

# A worker that fails comes back to a step that was in memory only.
first = make("flash", FlashCkptTrainer, memory_steps=1, callbacks=[Stop()])
assert first.get_last_checkpoint() is False
try:
    first.train()
    raise SystemExit("nothing stopped it")
except KeyboardInterrupt:
    pass
directory = first.args.output_dir
first.wait_latest_checkpoint()
dist.barrier()
assert [name for name in sorted(os.listdir(directory)) if name.startswith("checkpoint")] == ["checkpoint-2", "checkpoint-4"], os.listdir(directory)
checkpointer = first.flash_checkpointer
second = make("elsewhere", FlashCkptTrainer, seed=99)
second.args.output_dir, second.flash_checkpointer = directory, checkpointer
path = second.get_last_checkpoint()
assert path == os.path.join(directory, "checkpoint-5"), path
second.train(resume_from_checkpoint=path)
same(weights(second), want)
assert second.state.global_step == 8 and [h["step"] for h in second.state.log_history if "loss" in h] == list(range(1, 9))
gc.collect()
assert not len(checkpointer.async_save_engine._views._views), "muster's memory is still looked at"
assert second.wait_latest_checkpoint(60) == 8
say("restored from memory")

# On disk is what Trainer writes.
dist.barrier()
assert [name for name in sorted(os.listdir(directory)) if name.startswith("checkpoint")] == ["checkpoint-6", "checkpoint-8"], os.listdir(directory)
ours, theirs = (os.path.join(d, "checkpoint-8") for d in (directory, plain.args.output_dir))
assert files(ours) == files(theirs) and "rng_state_1.pth" in files(ours), (files(ours), files(theirs))
for name in files(ours):
    a, b = (os.path.join(d, name) for d in (ours, theirs))
    if name.endswith((".pt", ".pth")):
        same(*(torch.load(path, weights_only=False) for path in (a, b)), name)
    elif name.endswith(".safetensors"):
        same(load_file(a), load_file(b), name)
    elif name not in ("training_args.bin", "trainer_state.json"):  # with paths and times
        assert open(a, "rb").read() == open(b, "rb").read(), name
model = AutoModelForCausalLM.from_pretrained(ours)
same(dict(model.state_dict()), {k: v.to(model.dtype) for k, v in want.items()})
third = make("third", seed=98)
third.train(resume_from_checkpoint=os.path.join(directory, "checkpoint-6"))
same(weights(third), want)
say("the same as Trainer's")

# The best step stays, however old, and is what the training ends with. With greater_is_better that is the worst one, the first.
best = make("best", FlashCkptTrainer, save_total_limit=1, eval_strategy="steps", eval_steps=2, load_best_model_at_end=True, metric_for_best_model="loss", greater_is_better=True)
best.train()
best.wait_latest_checkpoint()
dist.barrier()
assert sorted(name for name in os.listdir(best.args.output_dir) if name.startswith("checkpoint")) == ["checkpoint-2", "checkpoint-8"], os.listdir(best.args.output_dir)
assert best.state.best_model_checkpoint == os.path.join(best.args.output_dir, "checkpoint-2"), best.state.best_model_checkpoint
kept = load_file(os.path.join(best.state.best_model_checkpoint, "model.safetensors"))
same({key: value for key, value in weights(best).items() if key in kept}, {key: kept[key] for key in weights(best) if key in kept})
say("the best")

# What others collect with the checkpointer itself, beside what they have written.
hand = (HfDdpCheckpointer if kind == "ddp" else lambda d: HfDeepSpeedCheckpointer(None, d))(os.path.join(sys.argv[1], "hand"))
root = os.path.join(hand.checkpoint_dir, "checkpoint-3")
os.makedirs(root, exist_ok=True)
if rank == 0:
    open(os.path.join(root, "config.json"), "w").write("{}")
hand.ckpt_agent.save({"x": torch.ones(3) * rank}, os.path.join(root, f"state{rank}.pt"))
hand.ckpt_agent.commit(hand.ckpt_agent.create(3))
dist.barrier()
assert hand.save_checkpoint_to_storage(3)
assert hand.async_save_engine.wait_latest_checkpoint(60) == 3
dist.barrier()
assert files(root) == ["config.json", "state0.pt", "state1.pt"] and torch.load(os.path.join(root, "state1.pt"))["x"][0] == 1
for options, words in (({"fsdp": True}, "no checkpoints of FSDP"), ({"save_on_each_node": True}, "save_on_each_node")):
    if kind == "ddp":
        try:
            make("wrong", FlashCkptTrainer, **options)
        except ValueError as e:
            assert words in str(e), e
        else:
            raise AssertionError(f"took {options}")
say("by hand")


def full(step, *args, **kwargs):
    assert late.flash_checkpointer.async_save_engine._begin(step, 1 << 49, True) == -1
    raise MemoryError("no room")


# One rank finds no memory: Trainer writes what is to be on disk.
late = make("late", FlashCkptTrainer, memory_steps=1)
if rank == 1:
    late.flash_checkpointer.async_save_engine.save_files = full
late.train()
dist.barrier()
assert files(os.path.join(late.args.output_dir, "checkpoint-8")) == files(theirs)
assert late.get_last_checkpoint() == os.path.join(late.args.output_dir, "checkpoint-8")
same(load_file(os.path.join(late.get_last_checkpoint(), "model.safetensors")), load_file(os.path.join(theirs, "model.safetensors")))
say("without memory")
