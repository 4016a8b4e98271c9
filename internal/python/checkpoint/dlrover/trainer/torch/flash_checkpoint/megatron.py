from dlrover.python.common.storage import rules_of
from muster.checkpoint._checkpointer import unread
from muster.checkpoint.megatron import MegatronCheckpointer, StorageType

__all__ = ["MegatronCheckpointer", "StorageType", "load_checkpoint", "save_checkpoint", "wait_latest_checkpoint"]


def checkpointer(strategy=None, storage=None, replica_count=0):
    """Returns the one that keeps the checkpoints of --save; what it keeps on disk is said by the first call that says it."""
    return MegatronCheckpointer.singleton_instance(replicas=replica_count or 0, **rules_of(strategy, storage))


def save_checkpoint(iteration, model, optimizer, opt_param_scheduler, num_floating_point_operations_so_far=0, storage_type=StorageType.DISK,
                    storage=None, comm_backend="", save_timeout=600, replica_count=0):
    """Keeps what Megatron's save_checkpoint would write."""
    unread(comm_backend, save_timeout)
    return checkpointer(None, storage, replica_count).save(
        iteration, model, optimizer, opt_param_scheduler, num_floating_point_operations_so_far, storage_type)


def load_checkpoint(model, optimizer, opt_param_scheduler, load_arg="load", strict=True, storage=None, comm_backend="", save_timeout=600,
                    replica_count=0):
    """Returns what Megatron's load_checkpoint returns: the iteration, and since 0.5 the number of floating point operations."""
    unread(comm_backend, save_timeout)
    return checkpointer(None, storage, replica_count).load(model, optimizer, opt_param_scheduler, load_arg, strict)


def wait_latest_checkpoint(timeout=1800):
    return checkpointer().wait_latest_checkpoint(timeout)
