#!/usr/bin/env python3
"""A peer: the same transformer or hybrid in PyTorch on the CPU or a CUDA card, BF16 autocast, FP32 masters, AdamW.

Prints one JSON line: tokens per second (median and spread over steps), step milliseconds and peak
memory. `--precision nvfp4` fake-quantises the operands of every product of a block as the NVFP4 recipe
does: values on the 4-bit grid in BF16. `--precision fp8` multiplies on FP8 tensor cores what a block multiplies, with a
scale per tensor from its present largest magnitude, as torchao's float8 training does by default: E4M3, gradients E5M2,
short accumulation in the forward GEMMs only; the head stays in BF16. Needs PyTorch, which Nibble itself does not.

A `--pattern` with M has Mamba-2 layers from mamba_ssm's Triton kernels, on a card: the call that joins convolution, scan,
gated norm and output projection if causal_conv1d is installed; otherwise the convolution is compiled with the rest.

Started by torchrun, each process has a card and --batch sequences, and gradients are averaged by DistributedDataParallel;
the first process prints the tokens per second of all.
"""

import argparse
import json
import os
import resource
import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


FP4_MAX, E4M3_MAX = 6.0, 448.0
mamba = None  # MambaKernels, if the pattern has such layers


def on_fp4_grid(x, stochastic):
    """The nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 with x's sign, or one of its two neighbours by chance."""
    size = x.abs().clamp(max=FP4_MAX)
    spacing = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    steps = size / spacing
    steps = torch.floor(steps + torch.rand_like(steps)) if stochastic else torch.round(steps)
    return torch.copysign((steps * spacing).clamp(max=FP4_MAX), x)


def fake_nvfp4(x, square=False, stochastic=False):
    """x [rows, cols] on the NVFP4 grid: blocks of 16 along the columns, or 16 by 16."""
    rows, cols = x.shape
    blocks = x.float().view(rows // 16, 16, cols // 16, 16) if square else x.float().view(rows, cols // 16, 16)
    over = (1, 3) if square else 2
    tensor_scale = x.abs().amax().float() / (FP4_MAX * E4M3_MAX)
    wanted = blocks.abs().amax(over, keepdim=True) / FP4_MAX / tensor_scale
    scale = wanted.clamp(max=E4M3_MAX).to(torch.float8_e4m3fn).float() * tensor_scale
    inverse = torch.where(scale > 0, 1 / scale, torch.zeros_like(scale))
    return (on_fp4_grid(blocks * inverse, stochastic) * scale).view(rows, cols).to(torch.bfloat16)


class Nvfp4Product(torch.autograd.Function):
    """y = x Wᵀ and both backward GEMMs on fake-quantised operands."""

    @staticmethod
    def forward(ctx, x, weight, rotation):
        ctx.save_for_backward(x, weight, rotation)
        return fake_nvfp4(x) @ fake_nvfp4(weight, square=True).t()

    @staticmethod
    def backward(ctx, dy):
        x, weight, rotation = ctx.saved_tensors
        dx = fake_nvfp4(dy, stochastic=True) @ fake_nvfp4(weight, square=True)

        def turned(t):  # along the tokens, 16 at a time
            tokens, cols = t.shape
            return (rotation @ t.view(tokens // 16, 16, cols)).view(tokens, cols).t().contiguous()

        dw = fake_nvfp4(turned(dy), stochastic=True) @ fake_nvfp4(turned(x)).t()
        return dx, dw, None


def to_fp8(x, kind):
    """x in an FP8 format, and the FP32 factor that returns it: one for the tensor."""
    largest = torch.finfo(kind).max
    scale = largest / x.abs().amax().float().clamp(min=1e-12)
    return (x.float() * scale).clamp(-largest, largest).to(kind), scale.reciprocal()


def by_columns(x):
    """The same matrix, stored column by column: tensor cores read both FP8 operands along the sum."""
    return x.t().contiguous().t()


class Fp8Product(torch.autograd.Function):
    """y = x Wᵀ and both backward GEMMs in FP8; x [tokens, in] BF16, W [out, in] FP32. Saves the FP8 operands."""

    @staticmethod
    def forward(ctx, x, weight):
        x8, x_scale = to_fp8(x, torch.float8_e4m3fn)
        w8, w_scale = to_fp8(weight, torch.float8_e4m3fn)
        ctx.save_for_backward(x8, x_scale, w8, w_scale)
        return torch._scaled_mm(x8, w8.t(), scale_a=x_scale, scale_b=w_scale, out_dtype=torch.bfloat16, use_fast_accum=True)

    @staticmethod
    def backward(ctx, dy):
        x8, x_scale, w8, w_scale = ctx.saved_tensors
        d8, d_scale = to_fp8(dy, torch.float8_e5m2)
        dx = torch._scaled_mm(d8, by_columns(w8), scale_a=d_scale, scale_b=w_scale, out_dtype=torch.bfloat16)
        dw = torch._scaled_mm(d8.t().contiguous(), by_columns(x8), scale_a=d_scale, scale_b=x_scale, out_dtype=torch.float32)
        return dx, dw


class Linear(nn.Linear):
    """A bias-free linear layer in BF16, FP8 or fake NVFP4."""

    precision = "bf16"

    def __init__(self, inner, outer):
        super().__init__(inner, outer, bias=False)
        hadamard = torch.ones(1, 1)
        for _ in range(4):
            hadamard = torch.cat((torch.cat((hadamard, hadamard), 1), torch.cat((hadamard, -hadamard), 1)))
        self.register_buffer("rotation", (hadamard / 4).to(torch.bfloat16), persistent=False)

    def forward(self, x):
        if Linear.precision == "bf16":
            return super().forward(x)
        flat = x.reshape(-1, x.shape[-1]).to(torch.bfloat16)
        if Linear.precision == "fp8":
            return Fp8Product.apply(flat, self.weight).view(*x.shape[:-1], -1)
        y = Nvfp4Product.apply(flat, self.weight.to(torch.bfloat16), self.rotation)
        return y.view(*x.shape[:-1], -1)


class Attention(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.heads, self.kv, self.dim, self.rope = a.heads, a.kv_heads, a.head_dim, a.rope
        self.qkv = Linear(a.d_model, (a.heads + 2 * a.kv_heads) * a.head_dim)
        self.out = Linear(a.heads * a.head_dim, a.d_model)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).split(
            [self.heads * self.dim, self.kv * self.dim, self.kv * self.dim], dim=-1)
        q = q.view(b, t, self.heads, self.dim).transpose(1, 2)
        k = k.view(b, t, self.kv, self.dim).transpose(1, 2)
        v = v.view(b, t, self.kv, self.dim).transpose(1, 2)

        def rotate(y):
            half = y.shape[-1] // 2
            turned = torch.cat((-y[..., half:], y[..., :half]), dim=-1)
            return y * cos + turned * sin

        if self.rope:
            q, k = rotate(q), rotate(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.kv != self.heads)
        return self.out(y.transpose(1, 2).reshape(b, t, self.heads * self.dim))


class Mlp(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.up = Linear(a.d_model, a.d_ff)
        self.down = Linear(a.d_ff, a.d_model)

    def forward(self, x):
        return self.down(F.relu(self.up(x)).square())


class Mamba2(nn.Module):
    """Projections, depthwise causal convolution, scan and gated norm by groups."""

    def __init__(self, a):
        super().__init__()
        self.heads, self.dim, self.groups, self.state = a.mamba_heads, a.mamba_head_dim, a.mamba_groups, a.mamba_state
        self.inner = self.heads * self.dim
        self.conv_dim = self.inner + 2 * self.groups * self.state
        self.chunk = a.chunk
        self.input = Linear(a.d_model, self.inner + self.conv_dim + self.heads)
        self.conv_weight = nn.Parameter(torch.randn(self.conv_dim, 4) / 2)
        self.conv_bias = nn.Parameter(torch.zeros(self.conv_dim))
        self.dt_bias = nn.Parameter(torch.full((self.heads,), -4.0))
        self.a_log = nn.Parameter(torch.linspace(1, 16, self.heads).log())
        self.d = nn.Parameter(torch.ones(self.heads))
        self.norm_weight = nn.Parameter(torch.ones(self.inner))
        self.out = Linear(self.inner, a.d_model)

    def forward(self, x):
        projected = self.input(x)
        if mamba.joined:
            return mamba.whole(projected, self)
        z, xbc, dt = projected.split([self.inner, self.conv_dim, self.heads], dim=-1)
        tokens = xbc.shape[1]
        padded = F.pad(xbc.float(), (0, 0, 3, 0))
        xbc = sum(padded[:, i:i + tokens] * self.conv_weight[:, i] for i in range(4)) + self.conv_bias
        return self.out(mamba.scan(F.silu(xbc).to(x.dtype), dt, z, self))


class MambaKernels:
    """mamba_ssm's calls, which torch.compile leaves as they are."""

    def __init__(self):
        from mamba_ssm.ops.triton import ssd_combined
        from mamba_ssm.ops.triton.layernorm_gated import rmsnorm_fn

        self.ssd, self.norm = ssd_combined, rmsnorm_fn
        self.joined = ssd_combined.causal_conv1d_fwd_function is not None

    @torch.compiler.disable
    def whole(self, projected, m):
        return self.ssd.mamba_split_conv1d_scan_combined(
            projected, m.conv_weight, m.conv_bias, m.dt_bias, -torch.exp(m.a_log), m.d, chunk_size=m.chunk,
            activation="silu", rmsnorm_weight=m.norm_weight, rmsnorm_eps=1e-5, outproj_weight=m.out.weight,
            headdim=m.dim, ngroups=m.groups, norm_before_gate=False)

    @torch.compiler.disable
    def scan(self, xbc, dt, z, m):
        b, t, _ = xbc.shape
        x, left, right = xbc.split([m.inner, m.groups * m.state, m.groups * m.state], dim=-1)
        y = self.ssd.mamba_chunk_scan_combined(
            x.reshape(b, t, m.heads, m.dim), dt, -torch.exp(m.a_log), left.reshape(b, t, m.groups, m.state),
            right.reshape(b, t, m.groups, m.state), chunk_size=m.chunk, D=m.d, dt_bias=m.dt_bias, dt_softplus=True)
        return self.norm(y.reshape(b, t, m.inner), m.norm_weight, None, z=z, eps=1e-5,
                         group_size=m.inner // m.groups, norm_before_gate=False)


class Block(nn.Module):
    def __init__(self, a, kind):
        super().__init__()
        self.norm = nn.RMSNorm(a.d_model, eps=1e-5)
        self.mixer = {"*": Attention, "-": Mlp, "M": Mamba2}[kind](a)

    def forward(self, x, cos, sin):
        normed = self.norm(x)
        return x + (self.mixer(normed, cos, sin) if isinstance(self.mixer, Attention) else self.mixer(normed))


class Transformer(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.embedding = nn.Embedding(a.vocab, a.d_model)
        self.blocks = nn.ModuleList(Block(a, kind) for kind in a.pattern)
        self.norm = nn.RMSNorm(a.d_model, eps=1e-5)
        self.head = nn.Linear(a.d_model, a.vocab, bias=False)
        angles = torch.outer(
            torch.arange(a.sequence).float(),
            10000.0 ** (-torch.arange(0, a.head_dim, 2).float() / a.head_dim))
        self.register_buffer("cos", torch.cat((angles, angles), -1).cos().to(torch.bfloat16))
        self.register_buffer("sin", torch.cat((angles, angles), -1).sin().to(torch.bfloat16))

    def forward(self, tokens, targets):
        x = self.embedding(tokens).to(torch.bfloat16)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.reshape(-1))


def main():
    p = argparse.ArgumentParser()
    for name, default in (("layers", 8), ("d-model", 512), ("d-ff", 2048), ("heads", 8),
                          ("kv-heads", 8), ("head-dim", 64), ("vocab", 8192), ("sequence", 512),
                          ("batch", 8), ("steps", 12), ("threads", 0), ("mamba-heads", 32),
                          ("mamba-head-dim", 64), ("mamba-groups", 1), ("mamba-state", 128), ("chunk", 256)):
        p.add_argument("--" + name, type=int, default=default)
    p.add_argument("--pattern", help="a mixer per block: M Mamba-2, * attention, - MLP; otherwise *- for each layer")
    p.add_argument("--no-rope", dest="rope", action="store_false")
    p.add_argument("--mode", choices=("eager", "compile"), default="eager")
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    p.add_argument("--precision", choices=("bf16", "fp8", "nvfp4"), default="bf16")
    a = p.parse_args()
    a.pattern = a.pattern or "*-" * a.layers
    if a.threads:
        torch.set_num_threads(a.threads)
    if "M" in a.pattern:
        global mamba
        mamba = MambaKernels()
    torch.manual_seed(1)
    Linear.precision = a.precision
    cuda = a.device == "cuda"
    world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("LOCAL_RANK", 0))
    if cuda:
        torch.cuda.set_device(rank)
        # cuDNN's attention is the fastest on this card.
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_math_sdp(False)
    model = Transformer(a).to(a.device)
    parameters = sum(x.numel() for x in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8,
                                  weight_decay=0.1, fused=True)
    run = model
    if world > 1:
        torch.distributed.init_process_group("nccl" if cuda else "gloo")
        run = nn.parallel.DistributedDataParallel(model, device_ids=[rank] if cuda else None, gradient_as_bucket_view=True)
    if a.mode == "compile":
        run = torch.compile(run)
    tokens = torch.randint(0, a.vocab, (a.batch, a.sequence + 1)).to(a.device)
    seconds = []
    for step in range(a.steps + 3):
        begin = time.perf_counter()
        with torch.autocast(a.device, dtype=torch.bfloat16):
            loss = run(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if cuda:
            torch.cuda.synchronize()
        if step >= 3:
            seconds.append(time.perf_counter() - begin)
    n = world * a.batch * a.sequence
    if world > 1:
        torch.distributed.destroy_process_group()
    if rank > 0:
        return
    print(json.dumps({
        "peer": f"torch {torch.__version__} {a.mode} {a.precision}" + (f" ddp {world}" if world > 1 else "")
        + (f" mamba_ssm{' causal_conv1d' if mamba.joined else ''}" if mamba else ""),
        "device": torch.cuda.get_device_name() if cuda else f"{torch.get_num_threads()} threads",
        "parameters": parameters,
        "tokens_per_s": n / statistics.median(seconds),
        "tokens_per_s_least": n / max(seconds),
        "tokens_per_s_most": n / min(seconds),
        "step_ms": 1e3 * statistics.median(seconds),
        "peak_memory_mib": torch.cuda.max_memory_allocated() / 2**20 if cuda
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "loss": loss.item(),
    }))


if __name__ == "__main__":
    sys.exit(main())
