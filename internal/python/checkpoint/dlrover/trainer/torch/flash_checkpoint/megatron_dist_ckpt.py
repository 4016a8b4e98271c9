import torch.distributed as dist

from dlrover.python.common import storage as _storage
from dlrover.python.common.storage import get_checkpoint_storage
from dlrover.trainer.torch.flash_checkpoint.megatron import checkpointer, wait_latest_checkpoint
from muster.checkpoint._checkpointer import unread
from muster.checkpoint.megatron import StorageType

__all__ = [
    "KeepLatestStepStrategy", "KeepStepIntervalStrategy", "StorageType", "get_chained_optimizer_parameter_state", "get_checkpoint_storage",
    "get_dist_optimizer_checkpoint_name", "get_parameter_state", "load_chained_optimizer_parameter_state", "load_checkpoint",
    "load_parameter_state_from_state_dict", "save_checkpoint", "wait_latest_checkpoint",
]


class KeepStepIntervalStrategy(_storage.KeepStepIntervalStrategy):
    name = "iter_{:07d}".format


class KeepLatestStepStrategy(_storage.KeepLatestStepStrategy):
    name = "iter_{:07d}".format


def save_checkpoint(iteration, model, optimizer, opt_param_scheduler, num_floating_point_operations_so_far=0, storage_type=StorageType.DISK,
                    comm_backend="", deletion_strategy=None, save_timeout=600, replica_count=0):
    """Keeps what Megatron's save_checkpoint would write, in the format of its --ckpt-format: DLRover's own one, which Megatron cannot
    load, is not written."""
    unread(comm_backend, save_timeout)
    return checkpointer(deletion_strategy, None, replica_count).save(
        iteration, model, optimizer, opt_param_scheduler, num_floating_point_operations_so_far, storage_type)


def load_checkpoint(model, optimizer, opt_param_scheduler, load_arg="load", strict=True, comm_backend="", deletion_strategy=None,
                    save_timeout=600, replica_count=0):
    """Returns the iteration and the number of floating point operations, 0 and 0 where there is no checkpoint."""
    unread(comm_backend, save_timeout)
    found = checkpointer(deletion_strategy, None, replica_count).load(model, optimizer, opt_param_scheduler, load_arg, strict)
    return found if isinstance(found, tuple) else (found, 0)


def get_dist_optimizer_checkpoint_name(checkpoints_path, iteration, release=False):
    """Returns where DLRover's package puts a rank's part of the distributed optimizer."""
    step = "release" if release else f"iter_{iteration:07d}"
    return f"{checkpoints_path}/{step}/rank_{dist.get_rank() if dist.is_initialized() else 0:05d}/distrib_optim.pt"


def _tensors(optimizer):
    """Yields the place of each parameter that this rank's part of a distributed optimizer has, and its tensors by name."""
    for ranges in optimizer.gbuf_ranges:
        if len(ranges) != 1:
            raise ValueError(f"the optimizer's buffers have {len(ranges)} dtypes, and this form of its state is for one")
        for buckets in ranges.values():
            for bucket, about in enumerate(buckets):
                for param in about["param_map"]:
                    group, order = optimizer.model_param_group_index_map[param]
                    main = optimizer.optimizer.param_groups[group]["params"][order]
                    yield (bucket, group, order), {"param": main, **optimizer.optimizer.state[main]}


def get_parameter_state(dist_optimizer):
    """Returns this rank's part of a distributed optimizer: {bucket: {group: {order: {name: tensor}}}}."""
    state = {}
    for (bucket, group, order), tensors in _tensors(dist_optimizer):
        state.setdefault(bucket, {}).setdefault(group, {})[order] = tensors
    return state


def get_chained_optimizer_parameter_state(chained_optimizer):
    """Returns that of each of several optimizers, None for one that is not distributed."""
    return [get_parameter_state(o) if hasattr(o, "gbuf_ranges") else None for o in chained_optimizer.chained_optimizers]


def load_parameter_state_from_state_dict(dist_optimizer, state_dict):
    """Undoes get_parameter_state, in place."""
    for (bucket, group, order), tensors in _tensors(dist_optimizer):
        for name, tensor in tensors.items():
            if hasattr(tensor, "copy_"):
                tensor.data.copy_(state_dict[bucket][group][order][name])


def load_chained_optimizer_parameter_state(chained_optimizer, states):
    for optimizer, state in zip(chained_optimizer.chained_optimizers, states or ()):
        if state is not None:
            load_parameter_state_from_state_dict(optimizer, state)
