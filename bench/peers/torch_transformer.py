#!/usr/bin/env python3
"""A peer: the same transformer in PyTorch on the CPU, BF16 autocast, FP32 masters, AdamW.

Prints one JSON line per mode (eager, compiled): tokens per second (median and spread over steps),
step milliseconds and peak memory. Needs PyTorch, which Nibble itself does not.
"""

import argparse
import json
import resource
import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.heads, self.kv, self.dim = a.heads, a.kv_heads, a.head_dim
        self.qkv = nn.Linear(a.d_model, (a.heads + 2 * a.kv_heads) * a.head_dim, bias=False)
        self.out = nn.Linear(a.heads * a.head_dim, a.d_model, bias=False)

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

        q, k = rotate(q), rotate(k)
        if self.kv != self.heads:
            k = k.repeat_interleave(self.heads // self.kv, dim=1)
            v = v.repeat_interleave(self.heads // self.kv, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, self.heads * self.dim))


class Mlp(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.up = nn.Linear(a.d_model, a.d_ff, bias=False)
        self.down = nn.Linear(a.d_ff, a.d_model, bias=False)

    def forward(self, x):
        return self.down(F.relu(self.up(x)).square())


class Block(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.norm1 = nn.RMSNorm(a.d_model, eps=1e-5)
        self.attention = Attention(a)
        self.norm2 = nn.RMSNorm(a.d_model, eps=1e-5)
        self.mlp = Mlp(a)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.embedding = nn.Embedding(a.vocab, a.d_model)
        self.blocks = nn.ModuleList(Block(a) for _ in range(a.layers))
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
                          ("batch", 8), ("steps", 12), ("threads", 0)):
        p.add_argument("--" + name, type=int, default=default)
    p.add_argument("--mode", choices=("eager", "compile"), default="eager")
    a = p.parse_args()
    if a.threads:
        torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    model = Transformer(a)
    parameters = sum(x.numel() for x in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8,
                                  weight_decay=0.1, fused=True)
    run = torch.compile(model) if a.mode == "compile" else model
    tokens = torch.randint(0, a.vocab, (a.batch, a.sequence + 1))
    seconds = []
    for step in range(a.steps + 3):
        begin = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = run(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step >= 3:
            seconds.append(time.perf_counter() - begin)
    n = a.batch * a.sequence
    print(json.dumps({
        "peer": f"torch {torch.__version__} {a.mode}",
        "threads": torch.get_num_threads(),
        "parameters": parameters,
        "tokens_per_s": n / statistics.median(seconds),
        "tokens_per_s_least": n / max(seconds),
        "tokens_per_s_most": n / min(seconds),
        "step_ms": 1e3 * statistics.median(seconds),
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "loss": loss.item(),
    }))


if __name__ == "__main__":
    sys.exit(main())
