"""Lightning's Trainer tells its steps, with what it logs.

    from muster.integrations.lightning import ProgressCallback

    trainer = Trainer(..., callbacks=[ProgressCallback()])
"""
try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    from pytorch_lightning.callbacks import Callback

from .. import progress


class ProgressCallback(Callback):
    """Tells each step of the optimizers, the numbers that were logged, and validation as a section.

    eval_timeout: how many seconds a validation may take before muster warns of it; None: any time.
    """

    def __init__(self, eval_timeout=None):
        super().__init__()
        self._timeout, self._step, self._total, self._section = eval_timeout, None, None, None

    def on_train_start(self, trainer, pl_module):
        total = trainer.estimated_stepping_batches
        if isinstance(total, (int, float)) and 0 < total < float("inf"):
            self._total = int(total)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, *unused):
        if trainer.global_step == self._step:  # gradients are gathered over several batches
            return
        self._step = trainer.global_step
        progress.step(self._step, total=self._total, **self._numbers(trainer))

    @staticmethod
    def _numbers(trainer):
        """What was logged and lies in no device's memory."""
        numbers = {}
        for name, value in trainer.logged_metrics.items():
            device = getattr(value, "device", None)
            if name not in ("n", "total") and (device is None or device.type == "cpu"):
                numbers[name] = value
        return numbers

    def on_validation_start(self, trainer, pl_module):
        self._leave()
        self._section = progress.section("eval", timeout=self._timeout)
        self._section.__enter__()

    def on_validation_end(self, trainer, pl_module):
        self._leave()

    def on_exception(self, trainer, pl_module, exception):
        self._leave()

    def _leave(self):
        if self._section is not None:
            self._section.__exit__(None, None, None)
            self._section = None
