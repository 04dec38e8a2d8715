"""Writes an ONNX graph node by node: the layers of the networks in the vocabulary of ONNX, with readable names."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from hpunet.errors import ConfigError
from hpunet.models.blocks import ResidualBlock

OPSET, IR_VERSION = 17, 8  # of 2022: runtimes since then read them
FLOAT, INT64, UINT8, INT32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.UINT8, TensorProto.INT32
_MAX_BYTES = 2**31 - 1  # of a protobuf message


class Graph:
    """An ONNX graph in the making. Values are their names; methods add nodes and return the value computed."""

    def __init__(self, name: str, model: nn.Module) -> None:
        self.name = name
        self._names = {id(parameter): key for key, parameter in model.named_parameters()}
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._tensors: dict[str, onnx.TensorProto] = {}

    def input(self, name: str, kind: int, shape: Sequence[int | str]) -> str:
        """An input of the graph."""
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, value: str, name: str, kind: int, shape: Sequence[int | str]) -> None:
        """Make a value an output of this name."""
        self._nodes.append(helper.make_node("Identity", [value], [name], name=name))
        self._outputs.append(helper.make_tensor_value_info(name, kind, shape))

    def constant(self, values: Any, kind: type[np.generic] = np.int64) -> str:
        """Numbers, stored once."""
        array = np.asarray(values, dtype=kind)
        name = f"{kind.__name__}{array.tolist()}".replace(" ", "")
        self._tensors.setdefault(name, numpy_helper.from_array(array, name))
        return name

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """A node with one output."""
        return self.split(kind, *inputs, num_outputs=1, **attributes)[0]

    def split(self, kind: str, *inputs: str, num_outputs: int, **attributes: Any) -> list[str]:
        """A node with several outputs."""
        name = f"{kind.lower()}_{len(self._nodes)}"
        outputs = [f"{name}.{i}" if num_outputs > 1 else name for i in range(num_outputs)]
        self._nodes.append(helper.make_node(kind, list(inputs), outputs, name=name, **attributes))
        return outputs

    def conv(self, x: str, layer: nn.Module) -> str:
        """A convolution with bias, zero-padded to the same size."""
        assert isinstance(layer, nn.Conv2d)
        assert layer.bias is not None
        parameters = [self._parameter(layer.weight), self._parameter(layer.bias)]
        side = layer.kernel_size[0]
        return self.op("Conv", x, *parameters, kernel_shape=[side, side], pads=[side // 2] * 4)

    def conv_stage(self, x: str, stage: nn.Module) -> str:
        """Convolutions, each followed by a ReLU (`blocks.conv_stage`)."""
        for layer in stage.children():
            x = self.op("Relu", x) if isinstance(layer, nn.ReLU) else self.conv(x, layer)
        return x

    def residual_stage(self, x: str, stage: nn.Module) -> str:
        """The residual blocks of a scale (`blocks.residual_stage`)."""
        for block in stage.children():
            assert isinstance(block, ResidualBlock)
            residual = x
            for layer in block.convs:
                residual = self.conv(self.op("Relu", residual), layer)
            skip = x if block.skip is None else self.conv(x, block.skip)
            x = self.op("Add", self.conv(residual, block.project), skip)
        return x

    def downsample(self, x: str) -> str:
        """2×2 average pooling."""
        return self.op("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])

    def upsample(self, x: str, *, bilinear: bool) -> str:
        """Twice the size, as `blocks.upsample_nearest` or `blocks.upsample_linear`."""
        how = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
        if not bilinear:
            how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return self.op("Resize", x, "", self.constant([1, 1, 2, 2], np.float32), **how)

    def concat(self, *values: str) -> str:
        """Joined along channels."""
        return self.op("Concat", *values, axis=1)

    def size(self, x: str, axis: int) -> str:
        """The length of an axis, of shape (1,)."""
        return self.op("Shape", x, start=axis, end=axis + 1)

    def _parameter(self, tensor: Tensor) -> str:
        name = self._names[id(tensor)]
        if name not in self._tensors:
            array = np.ascontiguousarray(tensor.detach().float().cpu().numpy())
            self._tensors[name] = numpy_helper.from_array(array, name)
        return name

    def serialise(self, *, producer: tuple[str, str], about: str) -> bytes:
        """The checked content of an ONNX file; `producer` is name and version."""
        tensors = list(self._tensors.values())
        if (size := sum(len(tensor.raw_data) for tensor in tensors)) > _MAX_BYTES:
            raise ConfigError(f"{self.name}: its weights take {size:,} bytes, an ONNX file holds {_MAX_BYTES:,}")
        graph = helper.make_graph(self._nodes, self.name, self._inputs, self._outputs, tensors, doc_string=about)
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name=producer[0],
            producer_version=producer[1],
        )
        onnx.checker.check_model(model, full_check=True)
        content: bytes = model.SerializeToString(deterministic=True)
        return content
