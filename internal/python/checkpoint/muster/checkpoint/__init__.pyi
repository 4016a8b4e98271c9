from enum import Enum
from os import PathLike
from typing import Any, Iterable, Mapping, Sequence, Union

_Path = Union[str, "PathLike[str]"]
_Part = Union["Archive", "Bytes"]

class StorageType(Enum):
    MEMORY = 0
    DISK = 1

class Archive:
    def __init__(self, obj: Any) -> None: ...

class Bytes:
    def __init__(self, data: Any) -> None: ...

class Checkpointer:
    directory: str
    rank: int
    shards: int
    step: int
    source: str
    def __init__(
        self, directory: _Path | None = None, *, shards: int | str = 1, keep: int = 0, keep_every: int = 0, size_hint: int = 0,
        reshards: bool = False, strategy: Any = None, replicas: int = 0,
    ) -> None: ...
    def also(self, *, keep: int = 0, keep_every: int = 0, strategy: Any = None, replicas: int = 0) -> None: ...
    @property
    def connected(self) -> bool: ...
    def save_checkpoint(
        self, step: int, state_dict: Any, path: _Path = "", storage_type: StorageType = StorageType.DISK,
    ) -> bool: ...
    def save_files(
        self, step: int, files: Mapping[str, Sequence[_Part]], directory: str = "", trackers: Iterable[tuple[str, str]] = (),
        storage_type: StorageType = StorageType.DISK, spare: Iterable[int] = (), aside: Mapping[str, Sequence[_Part]] | None = None,
    ) -> bool: ...
    def wrote(self, step: int) -> bool: ...
    def load_checkpoint(self, map_location: Any = None, weights_only: bool = False, resume_path: _Path = "") -> Any: ...
    def load_files(self, newest: bool = True) -> Any: ...
    def wait_latest_checkpoint(self, timeout: float = 1800) -> int: ...
    @property
    def preempted(self) -> bool: ...

class ShardedCheckpointer(Checkpointer):
    def __init__(
        self, directory: _Path | None = None, *, keep: int = 0, keep_every: int = 0, size_hint: int = 0, group: Any = None,
        strategy: Any = None, replicas: int = 0,
    ) -> None: ...
    def save_checkpoint(
        self, step: int, state_dict: Any, path: _Path = "", storage_type: StorageType = StorageType.DISK,
    ) -> bool: ...
    def reader(self, path: _Path = "") -> Any: ...
    def load_checkpoint(self, state_dict: Any, path: _Path = "") -> bool: ...  # type: ignore[override]

def safetensors_file(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> list[_Part]: ...
