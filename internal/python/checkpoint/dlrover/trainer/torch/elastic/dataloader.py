import json
import logging
import os

from torch.utils.data import DataLoader

_log = logging.getLogger("muster.checkpoint")


class ElasticDataLoader(DataLoader):
    """A DataLoader whose batch size may change: a JSON file, {"dataloader": {"version": N, "batch_size": N}}, says so with a
    version that is higher than the last one. Default: the file that DLROVER_PARAL_CONFIG_PATH names."""

    def __init__(self, *args, config_file=None, **kwargs):
        super().__init__(*args, **kwargs)
        self._config_version = 0
        self.config_file = config_file or os.environ.get("DLROVER_PARAL_CONFIG_PATH", "/tmp/dlrover/auto_paral_config.json")
        if config_file:
            self.load_config(config_file)

    def load_config(self, config_file=None):
        """Reads a file; one that is not there, or is being written, changes nothing."""
        try:
            with open(config_file) as f:
                config = json.load(f)["dataloader"]
            version, size = config.get("version", 0), config.get("batch_size", 0)
        except (OSError, TypeError, KeyError, AttributeError):
            return
        except ValueError as e:
            _log.warning("the batch size stays: %s is not JSON: %s", config_file, e)
            return
        if version <= self._config_version:
            return
        self._config_version = version
        if size > 0 and size != self.batch_sampler.batch_size:
            _log.info("the batch size is %d now", size)
            self.batch_sampler.batch_size = size

    def update_batch_size(self, batch_size=None):
        """Sets the batch size, by default to that of the file."""
        if batch_size:
            self.batch_sampler.batch_size = batch_size
        else:
            self.load_config(self.config_file)

    def get_batch_size(self):
        return self.batch_sampler.batch_size
