"""Copy the weights of the authors' TensorFlow code into our model.

Their variables are named `<scope>/<part>/conv_2d[_N]/{w,b}`; part is prior, posterior or f_comb, and N counts the
convolutions of a part in order of creation (`_in_creation_order`).
"""

import re
from collections.abc import Iterator, Mapping
from itertools import chain

import numpy as np
import torch
from torch import nn

from hpunet.errors import CheckpointError
from hpunet.models.blocks import Convolution, ResidualBlock
from hpunet.models.hpunet import HPUNet

_NAME = re.compile(r"^(?:.*/)?(?P<conv>(?:prior|posterior|f_comb)/(?:conv_2d(?:_\d+)?|logits))/(?P<kind>[wb])$")


def is_weight(name: str) -> bool:
    """Whether a variable of this name is a weight of the authors' network (not an optimiser slot or the step)."""
    return _NAME.match(name) is not None


def _in_creation_order(*parts: nn.Module) -> Iterator[Convolution]:
    """The convolutions of these modules as the authors' code creates them."""
    for part in parts:
        if isinstance(part, Convolution):
            yield part
        elif isinstance(part, ResidualBlock):
            yield from _in_creation_order(*part.convs)
            if part.skip is not None:
                yield part.skip
            yield part.project
        else:
            yield from _in_creation_order(*part.children())


def _convolutions(model: HPUNet) -> dict[str, Convolution]:
    """Our convolutions under the authors' names, without scope."""
    num_latents = len(model.latent_dims)
    named = {"f_comb/logits": model.logits}
    parts: dict[str, list[nn.Module]] = {"f_comb": list(model.prior.decoder[num_latents:])}
    for name, net in (("prior", model.prior), ("posterior", model.posterior)):
        stages = list(net.decoder[:num_latents])
        pairs = zip(net.heads, [*stages, nn.Identity()], strict=False)
        parts[name] = [net.encoder, *chain.from_iterable(pairs)]
    for name, modules in parts.items():
        for number, conv in enumerate(_in_creation_order(*modules)):
            named[f"{name}/conv_2d_{number}" if number else f"{name}/conv_2d"] = conv
    return named


def _dead_names(model: HPUNet, named: Mapping[str, Convolution]) -> set[str]:
    """Names of the posterior's last decoder level, which the authors' code creates and never uses."""
    first = sum(name.startswith("posterior/") for name in named)
    return {f"posterior/conv_2d_{first + i}" for i in range(4 * model.blocks_per_scale + 1)}


@torch.no_grad()
def load_tf_variables(model: HPUNet, variables: Mapping[str, np.ndarray]) -> list[str]:
    """Copy the authors' variables (name → array, convolutions HWIO) into a model of the same shape.

    Returns the unused names: the posterior's last level, optimiser slots, λ, the step. Nothing is copied unless
    everything fits; a `CheckpointError` names what is missing, misshapen or unknown to the model.
    """
    named = _convolutions(model)
    dead = _dead_names(model, named)
    found: dict[tuple[str, str], str] = {}
    unused, foreign = [], []
    for name in variables:
        match = _NAME.match(name)
        if match is None or match["conv"] in dead:
            unused.append(name)
        elif match["conv"] not in named:
            foreign.append(name)
        elif (match["conv"], match["kind"]) in found:
            other = found[match["conv"], match["kind"]]
            raise CheckpointError(f"two variables for one weight: {other} and {name}; keep those of one scope")
        else:
            found[match["conv"], match["kind"]] = name
    missing = [f"{conv}/{kind}" for conv in named for kind in "wb" if (conv, kind) not in found]
    if missing:
        raise CheckpointError(f"{len(missing)} variables are missing: {_first_names(missing)}")
    if foreign:
        words = "variables belong to convolutions that this model does not have (is it of the same shape?)"
        raise CheckpointError(f"{len(foreign)} {words}: {_first_names(foreign)}")
    copies: list[tuple[torch.Tensor, torch.Tensor]] = []
    misshapen = []
    for (conv, kind), name in found.items():
        tensor = torch.from_numpy(np.array(variables[name]))
        target = named[conv].weight.permute(2, 3, 1, 0) if kind == "w" else named[conv].bias
        assert target is not None
        if tensor.shape != target.shape:
            misshapen.append(f"{name} has {tuple(tensor.shape)}, expected {tuple(target.shape)}")
        copies.append((target, tensor))
    if misshapen:
        raise CheckpointError(f"{len(misshapen)} variables have another shape: {_first_names(misshapen)}")
    for target, tensor in copies:
        target.copy_(tensor)
    return unused


def _first_names(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
