"""A state of GPT-2's shapes: weights, and Adam's two moments."""
import torch

LAYERS = 12


def _weights(width):
    shapes = {"c_attn": (width, 3 * width), "c_proj": (width, width), "c_fc": (width, 4 * width), "mlp_proj": (4 * width, width), "ln_1": (width,), "ln_2": (width,)}
    found = {}
    for i in range(LAYERS):
        for name, shape in shapes.items():
            found[f"h.{i}.{name}.weight"] = torch.rand(shape)
            found[f"h.{i}.{name}.bias"] = torch.rand(shape[-1])
    return found


class State:
    """A state of so many MiB. whole is what is saved, size its tensors' bytes."""

    def __init__(self, mib):
        width = int((mib * 2**20 / 3 / 4 / (12 * LAYERS)) ** 0.5) // 8 * 8
        self.model, self.first, self.second = _weights(width), _weights(width), _weights(width)
        self.optimizer = {
            "state": {i: {"step": torch.tensor(1.0), "exp_avg": a, "exp_avg_sq": b} for i, (a, b) in enumerate(zip(self.first.values(), self.second.values()))},
            "param_groups": [{"lr": 1e-3, "params": list(range(len(self.model)))}],
        }
        self.whole = {"model": self.model, "optimizer": self.optimizer, "step": 0}
        self.size = sum(t.nbytes for part in (self.model, self.first, self.second) for t in part.values())

    def restore(self, loaded):
        """Copies a state that was loaded to where this one lies."""
        for name, t in self.model.items():
            t.copy_(loaded["model"][name])
        for i, moments in self.optimizer["state"].items():
            for name, t in moments.items():
                t.copy_(loaded["optimizer"]["state"][i][name])

    def named(self):
        """Returns all tensors of the model's shapes by names of their own."""
        return {**self.model, **{"a." + k: v for k, v in self.first.items()}, **{"b." + k: v for k, v in self.second.items()}}
