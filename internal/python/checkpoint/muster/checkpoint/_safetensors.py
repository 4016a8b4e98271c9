"""Files in the format safetensors: eight bytes, the length of a header in JSON, which says where each tensor's bytes lie behind
it (the format's description: huggingface/safetensors, README)."""
import json
import struct

import torch

from ._files import Bytes

_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.int32: "I32",
    torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL", torch.complex64: "C64",
}
for _dtype, _name in (("uint16", "U16"), ("uint32", "U32"), ("uint64", "U64"), ("float8_e4m3fn", "F8_E4M3"), ("float8_e5m2", "F8_E5M2")):
    if hasattr(torch, _dtype):
        _NAMES[getattr(torch, _dtype)] = _name


def safetensors_file(tensors, metadata=None):
    """Returns the parts of a file with named tensors, for save_files: {"model.safetensors": safetensors_file(model.state_dict())}.

    metadata is a dict of strings. The format knows no shared memory: of tensors that are tied each gets bytes of its own.
    Raises TypeError for what is no dense tensor of a dtype that the format has.
    """
    header, parts, at = {"__metadata__": {"format": "pt", **(metadata or {})}}, [], 0
    for name in sorted(tensors, key=lambda name: (-tensors[name].element_size(), name)):  # so that all are aligned
        t = tensors[name]
        if type(t) not in (torch.Tensor, torch.nn.Parameter) or t.layout is not torch.strided or t.dtype not in _NAMES:
            raise TypeError(f"cannot write {name!r} as safetensors: {type(t).__name__}, {t.dtype}, {t.layout}; give whole, dense tensors")
        size = t.numel() * t.element_size()
        header[name] = {"dtype": _NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + size]}
        parts.append(Bytes(t.resolve_conj().resolve_neg()))
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return [Bytes(struct.pack("<Q", len(text)) + text), *parts]
