# ruff: noqa: E501
"""Which part of a recipe makes the loss low at equal seconds? Runs between nanoGPT's and ours.

    python benchmarks/learning_lab.py docs/experiments/race/runs.json --data FOLDER --out FOLDER

A trainer of its own with torch and numpy only, so that one difference is one option. FOLDER holds
train.bin and val.bin (uint16 ids), and meta.json with window_targets and window_bytes.

Workers take runs in the order of the list. Each run is compiled and its step is timed with the GPU
to itself (the others pause for half a second); then it trains beside the others. `tokens` sets its
length directly; `seconds` sets it in anchor seconds: as many steps as fit into that time by the solo
step time, on a clock where the anchor (nanoGPT's recipe) sees ANCHOR_TOKENS in ANCHOR_SECONDS.
Every result is one line of results.jsonl, written at once; every evaluation one line of curves.jsonl.
"""

import argparse
import fcntl
import hashlib
import itertools
import json
import math
import multiprocessing
import os
import statistics
import sys
import time
import traceback
from pathlib import Path

ANCHOR_TOKENS, ANCHOR_SECONDS = 147_000_000, 60.0
WARM_STEPS, CHUNK = 6, 25

# nanoGPT's recipe is the default; every option is one difference from it.
DEFAULTS = {
    # length: tokens, or seconds (of the anchor's clock) where given
    "tokens": ANCHOR_TOKENS, "seconds": None, "steps": None, "evaluations": 10,
    "batch": 128, "context": 256, "order": "iid",  # iid | epochs
    "train_fraction": 1.0, "input_noise": 0.0,
    # model
    "d_model": 512, "layers": 4, "heads": 16, "d_ff": None, "vocab": 16384,
    "norm": "layernorm",  # layernorm | rmsnorm | rmsnorm_plain (no gain)
    "positions": "learned", "rope_theta": 10000.0,  # learned | rope | none
    "activation": "gelu",  # gelu | silu | relu2 (4x) | swiglu (8/3)
    "tied": True, "qk_norm": False, "soft_cap": None,
    "value_layers": [], "value_shared": True,  # layers whose values get a table's rows added
    "x0_mix": False, "unet": False,
    "dropout": 0.0, "attention_dropout": 0.0,
    "residual": "float32",  # what the blocks add to: float32 | bfloat16
    # initial values: hidden "fan" is variance 2 / (in + out), a number is the deviation
    "hidden_init": 0.02, "depth_scaled": True, "zero_out": False,
    "embed_std": 0.02, "head_std": 0.02, "position_std": None, "input_scale": 1.0,
    "x0_init": 0.0, "unet_init": 1.0, "value_std": 0.0,
    # optimizer: rates and decays of tables, head and scalars are the general ones where None
    "optimizer": "adamw",  # adamw | muon (matrices of the blocks; adamw for the rest)
    "lr": 1e-3, "adam_lr": None, "embed_lr": None, "head_lr": None, "scalar_lr": None,
    "decay": 0.1, "embed_decay": None, "head_decay": None,
    "betas": [0.9, 0.95], "eps": 1e-8, "momentum": 0.95,
    "cautious": False, "row_norm": False, "ns_steps": 5,
    "clip": 1.0, "label_smoothing": 0.0, "ema": 0.0,
    "schedule": "cosine",  # cosine | linear | wsd
    "warmup": 150, "min_ratio": 0.1, "decay_fraction": 0.5,  # decay_fraction: of wsd
    "compile_mode": "default", "precision": "bf16",
}  # fmt: skip

# configs/train/web.yaml; a tied table would begin at head_std and come in times 92 (TIED_OURS).
OURS = {
    "norm": "rmsnorm", "positions": "rope", "activation": "swiglu", "d_ff": 1344, "tied": False,
    "hidden_init": "fan", "depth_scaled": False, "embed_std": 1.0, "head_std": math.sqrt(2 / (16384 + 512)),
    "embed_decay": 0.0, "lr": 3e-3, "order": "epochs", "residual": "bfloat16",
}  # fmt: skip
TIED_OURS = {
    "tied": True,
    "embed_std": math.sqrt(2 / (16384 + 512)),
    "input_scale": math.sqrt((16384 + 512) / 2),
}
NANO_INIT = {
    "hidden_init": 0.02,
    "depth_scaled": True,
    "embed_std": 0.02,
    "head_std": 0.02,
    "input_scale": 1.0,
}
# The first guess at a winner: nanoGPT's small tied table and its decay, Muon with strong decay.
WIN = {
    "norm": "rmsnorm", "positions": "rope", "activation": "gelu", "tied": True, "qk_norm": True,
    "order": "epochs", "optimizer": "muon", "lr": 3e-3, "decay": 1.0, "adam_lr": 3e-3, "embed_decay": 0.1,
    "schedule": "linear", "min_ratio": 0.0, "ema": 0.995, "seconds": 60.0,
}  # fmt: skip
PRESETS = {"nanogpt": {}, "ours": OURS, "win": WIN}
GROUPS = {"tied_ours": TIED_OURS, "nano_init": NANO_INIT}

# What the time of a step depends on.
SPEED_KEYS = (
    "batch context d_model layers heads d_ff vocab norm positions activation tied qk_norm soft_cap "
    "value_layers value_shared x0_mix unet dropout attention_dropout residual optimizer cautious "
    "row_norm ns_steps label_smoothing compile_mode precision"
).split()


# --------------------------------------------------------------------------- runs


def resolve(run, presets):
    """All options of one entry of the list: defaults, its preset, its groups, its own."""
    options = dict(DEFAULTS)
    layers = [presets[run.get("from", "nanogpt")]]
    layers += [GROUPS[name] for name in run.get("groups", [])]
    layers.append(run.get("set", {}))
    for layer in layers:
        unknown = set(layer) - set(DEFAULTS)
        if unknown:
            raise SystemExit(f"{run.get('name')}: unknown options {sorted(unknown)}")
        options |= layer
    if options["d_ff"] is None:
        d = options["d_model"]
        options["d_ff"] = d * 8 // 3 // 64 * 64 if options["activation"] == "swiglu" else 4 * d
    return options


def read_runs(path):
    """(name, seed, options) of each run, in order; an entry with several seeds is several runs."""
    listing = json.loads(Path(path).read_text())
    presets = PRESETS | {
        name: PRESETS[one.get("from", "nanogpt")] | one["set"]
        for name, one in listing.get("presets", {}).items()
    }
    return [
        (run["name"], seed, resolve(run, presets))
        for run in listing["runs"]
        for seed in run.get("seeds", [0])
    ]


def num_parameters(o):
    d, f = o["d_model"], o["d_ff"]
    gain = {"layernorm": d, "rmsnorm": d, "rmsnorm_plain": 0}[o["norm"]]
    block = 4 * d * d + (3 if o["activation"] == "swiglu" else 2) * d * f + 2 * gain
    block += 2 * (d // o["heads"]) if o["qk_norm"] else 0
    tables = 1 + (not o["tied"])
    if o["value_layers"]:
        tables += 1 if o["value_shared"] else len(o["value_layers"])
    total = o["layers"] * block + gain + tables * o["vocab"] * d
    total += o["context"] * d if o["positions"] == "learned" else 0
    total += 2 * o["layers"] if o["x0_mix"] else 0
    total += o["layers"] // 2 if o["unet"] else 0
    total += len(o["value_layers"])
    return total


def speed_key(o):
    chosen = {k: o[k] for k in SPEED_KEYS} | {"ema": o["ema"] > 0, "noise": o["input_noise"] > 0}
    return hashlib.sha1(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:12]


def schedule_factor(o, step, steps):
    warmup = min(o["warmup"], steps // 4)
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    if o["schedule"] == "cosine":
        left = 0.5 * (1 + math.cos(math.pi * progress))
    elif o["schedule"] == "linear":
        left = 1 - progress
    elif o["schedule"] == "wsd":
        left = min(1.0, (steps - step) / (o["decay_fraction"] * steps))
    else:
        raise ValueError(o["schedule"])
    return o["min_ratio"] + (1 - o["min_ratio"]) * left


# --------------------------------------------------------------------------- data


def window_starts(o, num_ids, steps, seed):
    """Where the windows of every step begin, (steps, batch): a function of the seed alone."""
    import numpy as np

    random = np.random.default_rng([seed, 7])
    context, count = o["context"], steps * o["batch"]
    if o["order"] == "iid":
        starts = random.integers(0, num_ids - context, count)
    elif o["order"] == "epochs":
        windows = (num_ids - context) // context
        epochs = []
        for _ in range(-(-count // windows)):
            offset = random.integers(0, num_ids - windows * context)
            epochs.append(offset + random.permutation(windows) * context)
        starts = np.concatenate(epochs)[:count]
    else:
        raise ValueError(o["order"])
    return starts.reshape(steps, o["batch"])


# --------------------------------------------------------------------------- model


def make_model_class():
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Norm(nn.Module):
        def __init__(self, kind, size):
            super().__init__()
            self.kind = kind
            self.gain = None if kind == "rmsnorm_plain" else nn.Parameter(torch.ones(size))

        def forward(self, x):
            wide = x.float()
            if self.kind == "layernorm":
                wide = wide - wide.mean(-1, keepdim=True)
            wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
            return wide if self.gain is None else wide * self.gain

    def rotate(x, cos, sin):
        first, second = x.float().chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)

    class Block(nn.Module):
        def __init__(self, o, index):
            super().__init__()
            d, f = o["d_model"], o["d_ff"]
            self.o, self.heads, self.activation = o, o["heads"], o["activation"]
            gated = 2 if self.activation == "swiglu" else 1
            self.attention_norm, self.mlp_norm = Norm(o["norm"], d), Norm(o["norm"], d)
            self.qkv = nn.Parameter(torch.empty(3 * d, d))
            self.out = nn.Parameter(torch.empty(d, d))
            self.up = nn.Parameter(torch.empty(gated * f, d))
            self.down = nn.Parameter(torch.empty(d, f))
            self.qkv.splits, self.up.splits = 3, gated
            if o["qk_norm"]:
                self.query_norm = Norm("rmsnorm", d // self.heads)
                self.key_norm = Norm("rmsnorm", d // self.heads)
            self.has_values = index in o["value_layers"]
            if self.has_values:
                self.value_gain = nn.Parameter(torch.ones(1))

        def forward(self, x, cos, sin, value_rows, dtype):
            rows, length, d = x.shape
            o = self.o

            def linear(a, weight):
                return F.linear(a.to(dtype), weight.to(dtype))

            def heads(a):
                return a.view(rows, length, self.heads, -1).transpose(1, 2)

            q, k, v = linear(self.attention_norm(x), self.qkv).split(d, dim=-1)
            if self.has_values:
                v = v + self.value_gain * value_rows
            q, k, v = heads(q), heads(k), heads(v)
            if o["qk_norm"]:
                q, k = self.query_norm(q), self.key_norm(k)
            if o["positions"] == "rope":
                q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            mixed = F.scaled_dot_product_attention(
                q.to(dtype), k.to(dtype), v.to(dtype), is_causal=True,
                dropout_p=o["attention_dropout"] if self.training else 0.0,
            )  # fmt: skip
            y = linear(mixed.transpose(1, 2).reshape(rows, length, d), self.out)
            x = x + F.dropout(y, o["dropout"], self.training)
            h = linear(self.mlp_norm(x), self.up)
            if self.activation == "swiglu":
                gate, h = h.chunk(2, dim=-1)
                h = F.silu(gate) * h
            elif self.activation == "relu2":
                h = F.relu(h).square()
            else:
                h = F.gelu(h) if self.activation == "gelu" else F.silu(h)
            return x + F.dropout(linear(h, self.down), o["dropout"], self.training)

    class Model(nn.Module):
        """forward(ids, targets) is the mean cross-entropy."""

        def __init__(self, o, device):
            super().__init__()
            d = o["d_model"]
            self.o = o
            self.dtype = torch.bfloat16 if o["precision"] == "bf16" else torch.float32
            self.embedding = nn.Parameter(torch.empty(o["vocab"], d))
            self.head = None if o["tied"] else nn.Parameter(torch.empty(o["vocab"], d))
            if o["positions"] == "learned":
                self.position = nn.Parameter(torch.empty(o["context"], d))
            tables = min(1, len(o["value_layers"])) if o["value_shared"] else len(o["value_layers"])
            self.values = nn.ParameterList(torch.empty(o["vocab"], d) for _ in range(tables))
            self.blocks = nn.ModuleList(Block(o, i) for i in range(o["layers"]))
            self.final_norm = Norm(o["norm"], d)
            if o["x0_mix"]:
                self.mix = nn.Parameter(torch.tensor([[1.0, o["x0_init"]]] * o["layers"]))
            if o["unet"]:
                self.skips = nn.Parameter(torch.full((o["layers"] // 2,), float(o["unet_init"])))
            # Buffers, so that another value is no other graph.
            self.register_buffer("input_scale", torch.tensor(float(o["input_scale"])))
            size = d // o["heads"]
            angles = torch.arange(o["context"]).double()[:, None] * o["rope_theta"] ** (
                -torch.arange(0, size, 2).double() / size
            )
            self.register_buffer("cos", angles.cos().float())
            self.register_buffer("sin", angles.sin().float())
            self.to(device)

        @torch.no_grad()
        def begin(self, seed):
            """Initial values, drawn on the CPU: the same for a seed wherever it runs."""
            o, random = self.o, torch.Generator().manual_seed(1000 + seed)

            def fill(weight, std, cut=False):
                new = torch.empty(weight.shape)
                if std == 0:
                    new.zero_()
                elif cut:
                    nn.init.trunc_normal_(new, 0.0, std, -3 * std, 3 * std, generator=random)
                else:
                    new.normal_(0.0, std, generator=random)
                weight.copy_(new)

            fan = o["hidden_init"] == "fan"
            fill(self.embedding, o["embed_std"], cut=fan)
            if self.head is not None:
                fill(self.head, o["head_std"], cut=fan)
            if o["positions"] == "learned":
                # As large as a token's vector comes in, as nanoGPT has it.
                std = o["position_std"] or o["embed_std"] * o["input_scale"]
                fill(self.position, std)
            for table in self.values:
                fill(table, o["value_std"])
            for block in self.blocks:
                for name in ("qkv", "out", "up", "down"):
                    weight = getattr(block, name)
                    if fan:
                        rows, columns = (
                            weight.shape[0] // getattr(weight, "splits", 1),
                            weight.shape[1],
                        )
                        std = math.sqrt(2 / (rows + columns))
                    else:
                        std = o["hidden_init"]
                    if name in ("out", "down"):
                        std = std / math.sqrt(2 * o["layers"]) if o["depth_scaled"] else std
                        std = 0.0 if o["zero_out"] else std
                    fill(weight, std, cut=fan)

        def forward(self, ids, targets):
            o = self.o
            x = F.embedding(ids, self.embedding) * self.input_scale
            if o["positions"] == "learned":
                x = x + self.position
            x = F.dropout(x, o["dropout"], self.training)
            if o["residual"] == "bfloat16":
                x = x.to(self.dtype)
            first, kept, tables = x, [], [F.embedding(ids, table) for table in self.values]
            half = o["layers"] // 2
            for index, block in enumerate(self.blocks):
                if o["x0_mix"]:
                    x = (self.mix[index, 0] * x + self.mix[index, 1] * first).to(x.dtype)
                if o["unet"] and index >= o["layers"] - half:
                    x = (x + self.skips[o["layers"] - 1 - index] * kept.pop()).to(x.dtype)
                rows = None
                if block.has_values:
                    rows = tables[0 if o["value_shared"] else o["value_layers"].index(index)]
                x = block(x, self.cos, self.sin, rows, self.dtype)
                if o["unet"] and index < half:
                    kept.append(x)
            weight = self.embedding if self.head is None else self.head
            logits = F.linear(self.final_norm(x).to(self.dtype), weight.to(self.dtype)).float()
            if o["soft_cap"]:
                logits = o["soft_cap"] * torch.tanh(logits / o["soft_cap"])
            smoothing = o["label_smoothing"] if self.training else 0.0
            return F.cross_entropy(
                logits.view(-1, logits.shape[-1]), targets.reshape(-1), label_smoothing=smoothing
            )

    return Model


# --------------------------------------------------------------------------- optimizer

# The quintics of groundup.optim.orthogonalization: each takes the interval the one before leaves.
QUINTICS = (
    (8.386893124345953, -24.371310642828803, 17.726411655627885),
    (4.143011984362461, -3.018617766934756, 0.5526501809738618),
    (3.931188432778592, -2.8741133975888404, 0.5367222643924123),
    (3.282797665205865, -2.4165537064742764, 0.48653088918810994),
    (2.28497497550362, -1.6323601559956669, 0.4030660869813085),
)


def orthogonalize(matrices, steps=5):
    """U Vᵀ of each U S Vᵀ of (count, rows, columns), roughly; bfloat16 on CUDA."""
    import torch

    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / x.square().sum((-2, -1), keepdim=True).sqrt().clamp(min=1e-30)
    x = x.bfloat16() if x.is_cuda else x
    for a, b, c in QUINTICS[-steps:] if steps < 5 else QUINTICS:
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon:
    """θ <- θ - lr λ θ - lr · 0.2 √max(rows, columns) · orthogonalize(μ M + (1 - μ) G).

    `cautious` decays only where the step shrinks a weight anyway; `row_norm` divides each row of
    the step by the root of its running mean square, keeping the matrix's norm. Packed weights
    (queries, keys, values; gate, up) are matrices of their own here.
    """

    def __init__(self, parameters, o):
        import torch

        self.o, self.lr = o, o["lr"]
        self.parameters, self.groups = list(parameters), {}
        for parameter in self.parameters:
            splits = getattr(parameter, "splits", 1)
            shape = (parameter.shape[0] // splits, parameter.shape[1])
            self.groups.setdefault(shape, []).append((parameter, splits))
        self.momenta = {
            (rows, columns): torch.zeros(
                sum(splits for _, splits in members), rows, columns, device=members[0][0].device
            )
            for (rows, columns), members in self.groups.items()
        }
        self.row_squares = {
            shape: torch.zeros(*momentum.shape[:2], 1, device=momentum.device)
            for shape, momentum in self.momenta.items()
        }

    def step(self):
        import torch

        o, lr = self.o, self.lr
        with torch.no_grad():
            for shape, members in self.groups.items():
                gradients = torch.cat([p.grad.view(n, *shape) for p, n in members])
                weights = [w for p, n in members for w in p.view(n, *shape).unbind(0)]
                momentum = self.momenta[shape].lerp_(gradients, 1 - o["momentum"])
                ahead = gradients.lerp_(momentum, o["momentum"])
                move = orthogonalize(ahead, o["ns_steps"]).float()
                if o["row_norm"]:
                    norms = move.square().sum((-2, -1), keepdim=True)
                    squares = self.row_squares[shape].lerp_(
                        move.square().mean(-1, keepdim=True), 1 - o["betas"][1]
                    )
                    move = move * torch.rsqrt(squares + 1e-12)
                    now = move.square().sum((-2, -1), keepdim=True).clamp(min=1e-30)
                    move = move * torch.sqrt(norms / now)
                move = move * (lr * 0.2 * math.sqrt(max(shape)))
                if o["cautious"]:
                    stacked = torch.stack(weights)
                    move = move + lr * o["decay"] * stacked * (move * stacked > 0)
                else:
                    torch._foreach_mul_(weights, 1 - lr * o["decay"])
                torch._foreach_sub_(weights, list(move.unbind(0)))


class Optimizers:
    """AdamW, with Muon for the matrices of the blocks where asked, under one schedule."""

    def __init__(self, model, o, fused):
        import torch

        def pick(name, otherwise):
            return otherwise if o[name] is None else o[name]

        general = o["lr"] if o["optimizer"] == "adamw" else pick("adam_lr", o["lr"])
        kinds = {
            "matrix": (general, o["decay"]),
            "table": (pick("embed_lr", general), pick("embed_decay", o["decay"])),
            "head": (pick("head_lr", general), pick("head_decay", o["decay"])),
            "scalar": (pick("scalar_lr", general), 0.0),
        }
        sorted_out = {kind: [] for kind in kinds}
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2 or name == "mix":
                kind = "scalar"
            elif name == "head":
                kind = "head"
            else:
                kind = "matrix" if name.startswith("blocks") else "table"
            sorted_out[kind].append(parameter)
        self.muon = None
        if o["optimizer"] == "muon":
            self.muon = Muon(sorted_out.pop("matrix"), o)
        groups = [
            {"params": members, "lr": kinds[kind][0], "weight_decay": kinds[kind][1]}
            for kind, members in sorted_out.items()
            if members
        ]
        self.adamw = torch.optim.AdamW(groups, betas=tuple(o["betas"]), eps=o["eps"], fused=fused)
        self.full = [group["lr"] for group in self.adamw.param_groups]
        self.o = o

    def step(self, factor):
        for group, full in zip(self.adamw.param_groups, self.full, strict=False):
            group["lr"] = full * factor
        self.adamw.step()
        if self.muon:
            self.muon.lr = self.o["lr"] * factor
            self.muon.step()


# --------------------------------------------------------------------------- one run


class Turns:
    """Lets one worker have the GPU to itself: the others wait at their next boundary."""

    def __init__(self, context, workers):
        self.turnstile = context.Lock()
        self.busy = [context.Lock() for _ in range(workers)]

    def boundary(self, worker):
        self.busy[worker].release()
        with self.turnstile:
            pass
        self.busy[worker].acquire()


class Solo:
    def __init__(self, turns, worker):
        self.turns, self.others = turns, [b for i, b in enumerate(turns.busy) if i != worker]

    def __enter__(self):
        self.turns.turnstile.acquire()
        for lock in self.others:
            lock.acquire()

    def __exit__(self, *_):
        for lock in self.others:
            lock.release()
        self.turns.turnstile.release()


class Trainer:
    """A model with its data and optimizer on a device; `run` trains it and yields its result."""

    def __init__(self, args, worker, shared):
        import numpy as np
        import torch

        self.args, self.worker, self.shared = args, worker, shared
        self.device = torch.device(args.device)
        self.cuda = self.device.type == "cuda"
        self.Model = make_model_class()
        self.meta = json.loads((args.data / "meta.json").read_text())
        torch.set_float32_matmul_precision("high")

        def load(name):
            return torch.from_numpy(np.fromfile(args.data / name, "<u2").astype(np.int32))

        self.train_ids = load("train.bin").to(self.device)
        val = load("val.bin")
        count, context = self.meta["windows"], self.meta["context"]
        val = val[: count * context + 1].long()
        self.eval_sha = hashlib.sha1(val.numpy().tobytes()).hexdigest()[:10]
        self.eval_ids = val[:-1].view(count, context).to(self.device)
        self.eval_targets = val[1:].view(count, context).to(self.device)
        if args.eval_windows:
            self.eval_ids = self.eval_ids[: args.eval_windows]
            self.eval_targets = self.eval_targets[: args.eval_windows]

    def synchronize(self):
        if self.cuda:
            import torch

            torch.cuda.synchronize()

    def build(self, o, seed):
        """A fresh model and optimizer; the compiled step comes with the first call."""
        import torch

        torch._dynamo.reset()
        self.model = self.compiled = self.optimizers = self.ema = self.parameters = None
        if self.cuda:
            torch.cuda.empty_cache()
        self.o = o
        self.model = self.Model(o, self.device)
        self.compiled = self.model
        if self.args.compile:
            self.compiled = torch.compile(self.model, mode=o["compile_mode"], dynamic=False)
        self.restart(seed)

    def restart(self, seed):
        """Initial values and empty optimizer state, in the same tensors: no graph is lost."""
        import torch

        self.model.begin(seed)
        with torch.no_grad():
            for name, one in self.model.named_parameters():
                if name == "mix":
                    one.copy_(torch.tensor([1.0, self.o["x0_init"]]).expand_as(one))
                elif name == "skips":
                    one.fill_(self.o["unet_init"])
                elif one.ndim < 2:
                    one.fill_(1.0)
        torch.manual_seed(seed)
        self.model.zero_grad(set_to_none=True)
        self.optimizers = Optimizers(self.model, self.o, fused=self.cuda)
        self.parameters = list(self.model.parameters())
        self.ema = [p.detach().clone() for p in self.parameters] if self.o["ema"] else None

    def set_windows(self, steps, seed):
        import torch

        num_ids = int(len(self.train_ids) * self.o["train_fraction"])
        starts = window_starts(self.o, num_ids, steps, seed)
        self.starts = torch.from_numpy(starts).to(self.device)
        self.span = torch.arange(self.o["context"] + 1, device=self.device)

    def step(self, number, factor):
        """One optimizer step; the loss stays on the device."""
        import torch

        rows = self.train_ids[self.starts[number][:, None] + self.span].long()
        ids, targets = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
        if self.o["input_noise"]:
            hit = torch.rand(ids.shape, device=self.device) < self.o["input_noise"]
            ids = torch.where(hit, torch.randint_like(ids, self.o["vocab"]), ids)
        loss = self.compiled(ids, targets)
        loss.backward()
        if self.o["clip"]:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.o["clip"], foreach=True)
        self.optimizers.step(factor)
        for parameter in self.parameters:
            parameter.grad = None
        if self.ema:
            with torch.no_grad():
                keep = min(self.o["ema"], (1 + number) / (10 + number))
                torch._foreach_lerp_(self.ema, self.parameters, 1 - keep)
        return loss.detach()

    def evaluate(self):
        """Mean loss of the fixed windows, by the model uncompiled: no second graph to compile."""
        import torch

        self.model.eval()
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        size = min(104, len(self.eval_ids))
        with torch.no_grad():
            for i in range(0, len(self.eval_ids), size):
                ids, targets = self.eval_ids[i : i + size], self.eval_targets[i : i + size]
                total += self.model(ids, targets).double() * ids.numel()
        self.model.train()
        return (total / self.eval_ids.numel()).item()

    def evaluate_average(self):
        import torch

        with torch.no_grad():
            saved = [p.clone() for p in self.parameters]
            torch._foreach_copy_(self.parameters, self.ema)
            loss = self.evaluate()
            torch._foreach_copy_(self.parameters, saved)
        return loss

    def solo_ms(self, o, seed):
        """Compile, then the median milliseconds of a step with the GPU to itself.

        Steps of the same kind are timed once. Afterwards the model has its initial values again.
        """
        key, timings = speed_key(o), read_json(self.args.timings)
        began = time.time()
        self.set_windows(WARM_STEPS + self.args.timed_steps, seed)
        self.step(0, 0.0)
        self.synchronize()
        compile_s = time.time() - began
        for number in range(1, WARM_STEPS):
            self.step(number, 0.0)
        self.synchronize()
        if key not in timings:
            with Solo(self.shared["turns"], self.worker):
                marks = []
                for number in range(WARM_STEPS, WARM_STEPS + self.args.timed_steps):
                    marks.append(self.mark())
                    self.step(number, 0.0)
                marks.append(self.mark())
                self.synchronize()
            spans = [self.span_ms(a, b) for a, b in itertools.pairwise(marks)]
            timings = update_json(self.args.timings, {key: statistics.median(spans[2:])})
        self.restart(seed)
        return timings[key], compile_s

    def mark(self):
        if not self.cuda:
            return time.perf_counter()
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def span_ms(self, a, b):
        return a.elapsed_time(b) if self.cuda else (b - a) * 1000

    def anchor_ms(self):
        if self.args.anchor_ms:
            return self.args.anchor_ms
        anchor = resolve({"set": self.args.anchor_set}, PRESETS)
        timings = read_json(self.args.timings)
        if speed_key(anchor) not in timings:
            log(self.worker, "timing the anchor")
            self.build(anchor, 0)
            return self.solo_ms(anchor, 0)[0]
        return timings[speed_key(anchor)]

    def run(self, name, seed, o):
        if o["seconds"] is not None and not self.args.wall_clock:
            anchor = self.anchor_ms()
        began = time.time()
        self.build(o, seed)
        counted = sum(p.numel() for p in self.model.parameters())
        assert counted == num_parameters(o), (counted, num_parameters(o))
        ms, compile_s = self.solo_ms(o, seed)
        per_step = o["batch"] * o["context"]
        if o["steps"]:
            steps = o["steps"]
        elif o["seconds"] is not None and self.args.wall_clock:
            steps = round(o["seconds"] * 1000 / ms)
        elif o["seconds"] is not None:
            anchor_steps = ANCHOR_TOKENS / ANCHOR_SECONDS * o["seconds"] / (128 * 256)
            steps = round(anchor_steps * anchor / ms)
        else:
            steps = round(o["tokens"] / per_step)
        solo_s = steps * ms / 1000
        result = {
            "name": name, "seed": seed, "parameters": counted, "steps": steps, "tokens": steps * per_step,
            "solo_ms": round(ms, 4), "solo_s": round(solo_s, 2),
            "tokens_per_s": round(per_step / ms * 1000), "compile_s": round(compile_s, 1),
        }  # fmt: skip
        if not self.fits(solo_s):
            log(self.worker, f"skip {name}: {solo_s:.0f} s alone do not fit before the deadline")
            return result | {"status": "skipped", "options": o}
        log(self.worker, f"start {name} seed {seed}: {steps} steps of {ms:.2f} ms, "
            f"compiled in {compile_s:.0f} s")  # fmt: skip
        result |= self.train(name, seed, steps, ms)
        bytes_per_token = self.meta["window_bytes"] / self.meta["window_targets"]
        bits = result["final"] / math.log(2) / bytes_per_token
        result |= {
            "bits_per_byte": round(bits, 5), "wall_s": round(time.time() - began, 1),
            "eval_sha": self.eval_sha, "options": o,
        }  # fmt: skip
        return result

    def train(self, name, seed, steps, ms):
        import torch

        turns, remaining = self.shared["turns"], self.shared["remaining"]
        self.set_windows(steps, seed)
        losses = torch.zeros(steps, device=self.device)
        count = self.o["evaluations"]
        marks = {max(1, round(steps * (k + 1) / count)) for k in range(count)}
        curve, status, last = [], "finished", 0
        self.model.train()
        turns.busy[self.worker].acquire()
        try:
            for number in range(steps):
                losses[number] = self.step(number, schedule_factor(self.o, number, steps))
                done = number + 1
                if done in marks:
                    loss, train = self.evaluate(), losses[last:done].mean().item()
                    tokens, last = done * self.o["batch"] * self.o["context"], done
                    curve.append([tokens, round(loss, 5), round(train, 5)])
                    append(self.args.out / "curves.jsonl", {
                        "name": name, "seed": seed, "step": done, "tokens": tokens, "validation": loss,
                        "train": train, "solo_s": round(done * ms / 1000, 2)})  # fmt: skip
                    if not math.isfinite(loss) or (
                        done > 0.3 * steps and loss > 7.5 and steps > 99
                    ):
                        status = "diverged"
                        break
                if done % CHUNK == 0:
                    self.synchronize()
                    remaining[self.worker] = (steps - done) * ms / 1000
                    turns.boundary(self.worker)
            result = {
                "status": status, "final": curve[-1][1], "best": min(point[1] for point in curve),
                "train": round(losses[max(0, done - 100) : done].mean().item(), 5), "curve": curve,
            }  # fmt: skip
            if self.ema:
                result["ema"] = round(self.evaluate_average(), 5)
            for scalars in ("mix", "skips"):
                if hasattr(self.model, scalars):
                    result[scalars] = getattr(self.model, scalars).detach().cpu().tolist()
        finally:
            remaining[self.worker] = 0.0
            turns.busy[self.worker].release()
        return result

    def fits(self, solo_s):
        """Whether a run of that length ends in time, with the GPU shared evenly meanwhile."""
        remaining = self.shared["remaining"]
        with remaining.get_lock():
            others = [r for i, r in enumerate(remaining) if i != self.worker]
            wall = solo_s + sum(min(r, solo_s) for r in others)
            left = self.shared["end"] - time.time()
            if wall * 1.08 + 3 > left:
                return False
            remaining[self.worker] = solo_s
        return True


# --------------------------------------------------------------------------- workers


def work(worker, args, runs, shared):
    try:
        import torch

        torch.set_num_threads(args.threads)
        trainer = Trainer(args, worker, shared)
        log(worker, "ready")
        while time.time() < shared["end"]:
            with shared["next"].get_lock():
                index = shared["next"].value
                shared["next"].value += 1
            if index >= len(runs):
                return
            name, seed, options = runs[index]
            try:
                result = trainer.run(name, seed, options)
            except Exception as error:
                traceback.print_exc()
                result = {
                    "name": name,
                    "seed": seed,
                    "status": "failed",
                    "error": repr(error)[:400],
                }
                result |= {"options": options}
            append(args.out / "results.jsonl", {"index": index} | result)
            if result["status"] in ("finished", "diverged"):
                log(worker, f"done  {name} seed {seed}: validation {result['final']:.4f}, "
                    f"best {result['best']:.4f}, average {result.get('ema')}, "
                    f"train {result['train']:.3f}, "
                    f"{result['tokens'] / 1e6:.0f}M tokens, {result['wall_s']:.0f} s")  # fmt: skip
    except KeyboardInterrupt:
        pass


STARTED = time.time()


def log(worker, text):
    print(f"[{time.time() - float(os.environ['LAB_STARTED']):6.1f} s, {worker}] {text}", flush=True)


def append(path, record):
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_json(path):
    try:
        return json.loads(Path(path).read_text())
    except FileNotFoundError:
        return {}


def update_json(path, new):
    with open(f"{path}.lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        merged = read_json(path) | new
        Path(f"{path}.new").write_text(json.dumps(merged))
        os.replace(f"{path}.new", path)
    return merged


def table(out):
    path = out / "results.jsonl"
    if not path.exists():
        return
    results = sorted(map(json.loads, path.read_text().splitlines()), key=lambda r: r["index"])
    print(f"{'run':34s} seed  params  tokens    ms  final   best    ema     train   bpb     wall")
    for r in results:
        label = f"{r['name'][:34]:34s} {r['seed']:4d}"
        if "final" not in r:
            print(label, r["status"], r.get("error", ""))
            continue
        print(f"{label} {r['parameters'] / 1e6:6.2f}M {r['tokens'] / 1e6:5.0f}M {r['solo_ms']:6.2f} "
              f"{r['final']:.4f}  {r['best']:.4f}  {r.get('ema') or 0:.4f}  {r['train']:.4f}  "
              f"{r['bits_per_byte']:.4f}  {r['wall_s']:5.0f} {r['status']}")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", help="JSON list of runs")
    parser.add_argument(
        "--data", type=Path, required=True, help="the folder of train.bin, val.bin, meta.json"
    )
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--deadline", type=float, default=86_400, help="seconds from the start")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--cache", default=".cache/inductor")
    parser.add_argument("--anchor-ms", type=float, help="the anchor's solo step, where known")
    parser.add_argument("--wall-clock", action="store_true", help="seconds are this GPU's own")
    parser.add_argument("--only", help="comma-separated names")
    parser.add_argument("--skip", type=int, default=0, help="leave out the first runs of the list")
    parser.add_argument("--set", default="{}", help="JSON of options for every run")
    parser.add_argument("--timed-steps", type=int, default=40)
    parser.add_argument("--eval-windows", type=int, help="fewer windows, for tests")
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()

    overrides = json.loads(args.set)
    runs = [(name, seed, o | overrides) for name, seed, o in read_runs(args.runs)]
    if args.only:
        runs = [run for run in runs if run[0] in args.only.split(",")]
    runs = runs[args.skip :]
    shape = ("d_model", "layers", "heads", "vocab", "context", "batch", "precision")
    args.anchor_set = {k: overrides[k] for k in shape if k in overrides}
    if args.dry_run:
        for name, seed, o in runs:
            length = (
                f"{o['seconds']} anchor s" if o["seconds"] else f"{o['tokens'] / 1e6:.0f}M tokens"
            )
            print(f"{name:34s} seed {seed} {num_parameters(o):12,} parameters {length}")
        print(f"{len(runs)} runs, {len({speed_key(o) for *_, o in runs})} kinds of step")
        return

    args.out.mkdir(parents=True, exist_ok=True)
    Path(args.cache).mkdir(parents=True, exist_ok=True)
    args.timings = f"{args.cache}/timings_{args.device}.json"
    workers = min(args.workers, len(runs))
    args.threads = max(1, (os.cpu_count() or 1) // workers)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = args.cache
    os.environ["TRITON_CACHE_DIR"] = f"{args.cache}/triton"
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(args.threads)
    os.environ["LAB_STARTED"] = str(STARTED)
    context = multiprocessing.get_context("spawn")
    shared = {
        "turns": Turns(context, workers),
        "next": context.Value("i", 0),
        "remaining": context.Array("d", workers),
        "end": STARTED + args.deadline,
    }
    log("-", f"{len(runs)} runs, {workers} workers")
    processes = [context.Process(target=work, args=(i, args, runs, shared)) for i in range(workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(max(0.1, shared["end"] + 2 - time.time()))
    for process in processes:
        if process.is_alive():
            log("-", f"stopping worker {process.pid} at the deadline")
            process.terminate()
            process.join(5)
            if process.is_alive():
                process.kill()
    table(args.out)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
