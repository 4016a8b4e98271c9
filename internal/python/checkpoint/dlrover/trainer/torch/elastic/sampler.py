import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler


class ElasticDistributedSampler(DistributedSampler):
    """A DistributedSampler that goes on in the middle of an epoch, with as many ranks as there are then."""

    def __init__(self, dataset, num_replicas=None, rank=None, shuffle=True, seed=0, drop_last=False):
        if not dist.is_initialized():
            num_replicas, rank = num_replicas or 1, rank or 0
        super().__init__(dataset, num_replicas, rank, shuffle, seed, drop_last)
        self._completed = {}  # samples that were used up when an epoch was restored, by epoch

    def __iter__(self):
        if self.shuffle:
            generator = torch.Generator()
            generator.manual_seed(self.seed + self.epoch)
            indices = torch.randperm(len(self.dataset), generator=generator).tolist()
        else:
            indices = list(range(len(self.dataset)))
        if self.epoch not in self._completed:
            self._divide(len(self.dataset))
        indices = indices[self._completed.get(self.epoch, 0):]
        total = self.num_samples * self.num_replicas
        while indices and len(indices) < total:  # the first ones again, so that all ranks have as many
            indices += indices[:total - len(indices)]
        return iter(indices[self.rank:total:self.num_replicas])

    def _divide(self, samples):
        """Sets how many of so many samples each rank gets."""
        if self.drop_last:
            self.num_samples = samples // self.num_replicas
        else:
            self.num_samples = -(-samples // self.num_replicas)

    def state_dict(self, iter_step, micro_batch_size):
        """Returns how far an epoch is after so many steps, in each of which every rank took micro_batch_size samples."""
        return {"completed_num": iter_step * micro_batch_size * self.num_replicas, "epoch": self.epoch}

    def load_state_dict(self, state):
        """Goes on behind the samples that a state counts; more than there are count from the beginning again."""
        self.epoch, completed = int(state.get("epoch", 0)), int(state.get("completed_num", 0))
        if completed > len(self.dataset):
            completed %= len(self.dataset)
        self._completed[self.epoch] = completed
        self._divide(len(self.dataset) - completed)
