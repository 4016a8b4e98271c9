"""A user's strategy for what stays on disk: an object whose clean_up(step, delete_func) is told of steps that are not the newest."""
import logging
import os
import re
import shutil
import uuid

from . import _direct


class Strategy:
    """Tells a strategy of the steps of a directory. It learns of a step on disk by the tracker, when the next one is saved or waited for."""

    def __init__(self, directory, strategy):
        self._directory, self._strategy = directory, strategy
        self._steps = [step for step in (_direct.latest(directory),) if step >= 0]  # on disk or on their way, not told of yet

    def saved(self, step):
        """A step is on its way to disk."""
        if step not in self._steps:
            self._steps.append(step)

    def look(self):
        """Tells of what a newer step on disk has replaced."""
        newest = _direct.latest(self._directory)
        for step in sorted(s for s in self._steps if s < newest):
            self._steps.remove(step)
            self._strategy.clean_up(step, self._remove)

    def _remove(self, path, *_, **__):
        """Removes the directory or file of a step, so that at no time a part of it looks like a step."""
        path = os.path.abspath(os.fspath(path))
        parent, name = os.path.split(path)
        number = re.search(r"(\d+)(\.\w+)?$", name)
        if parent != self._directory or not number or int(number[1]) == _direct.latest(self._directory):
            logging.getLogger("muster.checkpoint").warning(
                "%s is not removed: a strategy may remove older steps in %s, and nothing else", path, self._directory)
            return
        own = os.path.join(self._directory, ".muster")
        manifest = os.path.join(own, f"{int(number[1])}.json")  # of a step whose files have paths of their own
        if os.path.exists(manifest):
            os.remove(manifest)
        if os.path.lexists(path):
            os.makedirs(own, exist_ok=True)
            trash = os.path.join(own, "trash-" + uuid.uuid4().hex)
            os.rename(path, trash)
            shutil.rmtree(trash) if os.path.isdir(trash) else os.remove(trash)
