"""Hugging Face's Trainer tells its steps, with what it logs.

    from muster.integrations.transformers import ProgressCallback

    trainer = Trainer(..., callbacks=[ProgressCallback()])
"""
from transformers import TrainerCallback

from .. import progress


class ProgressCallback(TrainerCallback):
    """Tells each step of the optimizer, the numbers of the last log, and evaluations as a section.

    eval_timeout: how many seconds an evaluation may take before muster warns of it; None: any time.
    """

    def __init__(self, eval_timeout=None):
        self._timeout, self._values, self._section = eval_timeout, {}, None

    def on_step_end(self, args, state, control, **kwargs):
        self._leave()
        progress.step(state.global_step, total=state.max_steps if state.max_steps > 0 else None, **self._values)

    def on_log(self, args, state, control, logs=None, **kwargs):
        numbers = {name: value for name, value in (logs or {}).items() if isinstance(value, (int, float)) and name != "total_flos"}
        for name in ("n", "total"):
            numbers.pop(name, None)
        self._values = {**self._values, **numbers}
        if state.global_step > 0:
            progress.step(state.global_step, **self._values)

    def on_prediction_step(self, args, state, control, **kwargs):
        if self._section is None:
            self._section = progress.section("eval", timeout=self._timeout)
            self._section.__enter__()

    def on_evaluate(self, args, state, control, **kwargs):
        self._leave()

    on_predict = on_train_end = on_evaluate

    def _leave(self):
        if self._section is not None:
            self._section.__exit__(None, None, None)
            self._section = None
