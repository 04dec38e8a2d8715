"""The kernels against plain torch in float64, on tiny shapes; on a CPU through Triton's interpreter.

Run by `test_kernels.py` in a process of its own, because the interpreter is chosen before Triton is imported:
TRITON_INTERPRET=1 python tests/kernels/interpreted.py; on a GPU without that variable.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from hpunet.kernels.convolution import convolve, correlate, row_length
from hpunet.kernels.fused import fused_blocks
from hpunet.models.hpunet import HPUNet

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHAPES = [  # batch, height, width, in, out: tiles within images, several images a tile, odd sizes, one image
    (2, 16, 16, 16, 24),
    (3, 4, 4, 24, 16),
    (5, 1, 1, 40, 16),
    (1, 9, 6, 8, 16),
]


def distance(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).norm() / other.double().norm())


def plain(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """NHWC and (out, in, 3, 3)."""
    return F.conv2d(x.permute(0, 3, 1, 2), weight, bias, padding=1).permute(0, 2, 3, 1)


def as_rows(weight: Tensor) -> Tensor:
    rows = weight.permute(2, 3, 1, 0).flatten(1, 2)
    return F.pad(rows, (0, 0, 0, row_length(weight.shape[1]) - rows.shape[1])).contiguous()


def check_convolve() -> None:
    for b, h, w, channels, width in SHAPES:
        x, weight, bias = (
            torch.randn(s, dtype=torch.float64) for s in ((b, h, w, channels), (width, channels, 3, 3), width)
        )
        gate, residual = torch.randn(2, b, h, w, width, dtype=torch.float64)
        other, skip = torch.randn(b, h, w, 40, dtype=torch.float64), torch.randn(40, width, dtype=torch.float64)
        total = torch.zeros(width, device=DEVICE)
        on = {n: v.float().to(DEVICE) for n, v in {"x": x, "weight": as_rows(weight), "bias": bias}.items()}
        got = convolve(**on, relu_input=True, relu_output=True)  # type: ignore[arg-type]
        assert distance(got.cpu(), plain(x.relu(), weight, bias).relu()) < 1e-6
        got = convolve(
            on["x"],
            weight=on["weight"],
            gate=gate.float().to(DEVICE),
            residual=residual.float().to(DEVICE),
            skip=(other.float().to(DEVICE), skip.float().to(DEVICE)),
            sums=total,
        )
        expected = plain(x, weight) * (gate > 0) + other @ skip + residual
        assert distance(got.cpu(), expected) < 1e-6
        assert distance(total.cpu(), expected.sum(dim=(0, 1, 2))) < 1e-5


def check_correlate() -> None:
    for b, h, w, channels, width in SHAPES:
        x, g = (torch.randn(b, h, w, c, dtype=torch.float64) for c in (channels, width))
        weight = torch.zeros(width, channels, 3, 3, dtype=torch.float64, requires_grad=True)
        plain(x.relu(), weight).backward(g)
        assert weight.grad is not None
        straight, mirrored = weight.grad.permute(2, 3, 1, 0), weight.grad.flip(2, 3).permute(2, 3, 0, 1)
        rows, columns = x.float().to(DEVICE), g.float().to(DEVICE)
        out, sums = torch.ones(3, 3 * channels, width, device=DEVICE), torch.zeros(width, device=DEVICE)
        correlate(rows, columns, out=out, relu_rows=True, column_sums=sums)
        assert distance(out.cpu() - 1, straight.flatten(1, 2)) < 1e-5
        assert distance(sums.cpu(), g.sum(dim=(0, 1, 2))) < 1e-5
        out = torch.zeros(3, 3 * width, channels, device=DEVICE)
        correlate(columns, rows, out=out, relu_columns=True)
        assert distance(out.cpu(), mirrored.flatten(1, 2)) < 1e-6


def check_model() -> None:
    """All gradients of a model with padded and unpadded widths, with and without changes of width."""
    model = HPUNet(in_channels=1, num_classes=2, channels=(12, 16), latent_dims=(1,), blocks_per_scale=2).double()
    image, labels = torch.rand(2, 1, 8, 8, dtype=torch.float64), torch.randint(2, (2, 8, 8))
    noise = [torch.randn(2, *shape, dtype=torch.float64) for shape in model.latent_shapes(8, 8)]

    def gradients() -> tuple[Tensor, dict[str, Tensor]]:
        precision = next(model.parameters()).dtype
        model.zero_grad(set_to_none=True)
        where = {"dtype": precision, "device": DEVICE}
        output = model(image=image.to(**where), labels=labels.to(DEVICE), noise=[n.to(**where) for n in noise])
        (output.logits.square().mean() * 10 + output.kl.sum()).backward()
        found = {name: p.grad.cpu().clone() for name, p in model.named_parameters() if p.grad is not None}
        return output.logits.detach().cpu(), found

    model = model.to(DEVICE)
    expected = gradients()
    model = model.float()
    with fused_blocks(model, dtype=torch.float32) as fused:
        for _ in range(2):  # the second time nothing is left of the first
            fused.prepare()
            found = gradients()
            assert distance(found[0], expected[0]) < 1e-6
            assert found[1].keys() == expected[1].keys()
            for name, gradient in expected[1].items():
                assert distance(found[1][name], gradient) < 1e-5, name
    after = gradients()
    assert distance(after[0], expected[0]) < 1e-6  # and the model is as it was


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    check_convolve()
    check_correlate()
    check_model()
    print("the kernels agree with plain torch")
