#!/usr/bin/env python3
"""A peer: times of mamba_ssm's Triton kernels, and of causal_conv1d's if it is installed, on a CUDA card in BF16.

The shapes are those of `mamba_check`'s times. Prints a line per operation, milliseconds: the median of 20 launches
between events, after those that compile and choose. Backward passes are those of autograd, without the forward pass.
"""

import statistics
import sys

import torch
from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

try:
    from causal_conv1d import causal_conv1d_fn
except ImportError:
    causal_conv1d_fn = None

# name, sequences, tokens, heads, columns of a head, groups, state
SHAPES = (("12B", 4, 4096, 128, 80, 8, 128), ("8B", 4, 4096, 128, 64, 8, 128), ("1B", 2, 8192, 64, 64, 8, 128))


def milliseconds(run):
    times = []
    for i in range(25):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        if i >= 5:
            times.append(begin.elapsed_time(end))
    return statistics.median(times)


def passes(name, forward, inputs, gradient):
    """Times forward, then backward."""
    print(f"{name} forward {milliseconds(forward):.4f} ms")
    result = forward()
    print(f"{name} backward "
          f"{milliseconds(lambda: torch.autograd.grad(result, inputs, gradient, retain_graph=True)):.4f} ms", flush=True)


def main():
    torch.manual_seed(1)
    for name, sequences, tokens, heads, columns, groups, state in SHAPES:
        shape = f"{name} {sequences} x {tokens}"
        inner, conv = heads * columns, heads * columns + 2 * groups * state

        def random(*size, dtype=torch.bfloat16):
            return torch.randn(*size, device="cuda", dtype=dtype).requires_grad_()

        if causal_conv1d_fn is not None:
            xbc, weight, bias = random(sequences, tokens, conv), random(conv, 4, dtype=torch.float32), random(
                conv, dtype=torch.float32)
            passes(f"conv {shape}", lambda: causal_conv1d_fn(xbc.transpose(1, 2), weight, bias, activation="silu"),
                   (xbc, weight, bias), torch.randn(sequences, tokens, conv, device="cuda",
                                                    dtype=torch.bfloat16).transpose(1, 2))
        x, dt = random(sequences, tokens, heads, columns), random(sequences, tokens, heads)
        b, c = random(sequences, tokens, groups, state), random(sequences, tokens, groups, state)
        a_log, d = random(heads, dtype=torch.float32), random(heads, dtype=torch.float32)
        dt_bias = torch.full((heads,), -4.0, device="cuda").requires_grad_()
        for chunk in (128, 256):
            passes(f"scan {shape}, chunks of {chunk}",
                   lambda: mamba_chunk_scan_combined(x, dt, -torch.exp(a_log), b, c, chunk_size=chunk, D=d,
                                                     dt_bias=dt_bias, dt_softplus=True),
                   (x, dt, b, c, a_log, d, dt_bias), torch.randn_like(x))


if __name__ == "__main__":
    sys.exit(main())
