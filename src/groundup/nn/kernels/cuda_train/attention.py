"""Kernels of causal attention on packed projections: QK norm, RoPE and value embeddings, forward
for short sequences and for document masking, and backward. `packed_attention` launches them.

Forward, a program processes a head, one pair of query and key tiles after another; with document
masking it processes one tile of queries. Backward, a program processes one tile of queries or of
keys. This computes the attention weights twice, but each gradient is accumulated by one program, so
it is deterministic, and many programs fit on a multiprocessor. A program also propagates its tile's
gradient through RoPE and norm.

With document masking, a token attends to the keys from its entry in `starts` on. Entries never
decrease along a row, so tiles without such keys are skipped.
"""

import math

import triton
import triton.language as tl

_LN_2 = tl.constexpr(math.log(2.0))
# Below all scores, but finite, so that the difference of two is not NaN.
_NO_SCORE = tl.constexpr(-1e30)


@triton.jit
def _load(base, rows, seq, stride, D_HEAD: tl.constexpr):
    pointer = base + rows[:, None] * stride + tl.arange(0, D_HEAD)[None, :]
    return tl.load(pointer, mask=rows[:, None] < seq, other=0.0)


@triton.jit
def _store(base, x, rows, seq, stride, D_HEAD: tl.constexpr):
    pointer = base + rows[:, None] * stride + tl.arange(0, D_HEAD)[None, :]
    tl.store(pointer, x, mask=rows[:, None] < seq)


@triton.jit
def _angles(table, positions, is_inside, D_HEAD: tl.constexpr):
    offset = positions[:, None] * (D_HEAD // 2) + tl.arange(0, D_HEAD // 2)[None, :]
    return tl.load(table + offset, mask=is_inside[:, None], other=0.0)


@triton.jit
def _rotated(x, cos, sin, ROWS: tl.constexpr, D_HEAD: tl.constexpr):
    """Rotate the pairs (2k, 2k + 1) of each row of a tile; a negated sine rotates back."""
    even, odd = tl.split(tl.reshape(x, (ROWS, D_HEAD // 2, 2)))
    return tl.reshape(tl.join(even * cos - odd * sin, even * sin + odd * cos), (ROWS, D_HEAD))


@triton.jit
def prepare(
    packed, prepared, cos, sin, query_gain, key_gain, extra, factor, eps, count, seq,
    HEADS: tl.constexpr, TILE: tl.constexpr, D_HEAD: tl.constexpr,
    ROTATES: tl.constexpr, NORMALIZES: tl.constexpr, ADDS: tl.constexpr,
):  # fmt: skip
    # Heads are numbered row by row.
    index = tl.program_id(0) * TILE + tl.arange(0, TILE)
    part = tl.program_id(1)
    row, head = (index // HEADS).to(tl.int64), index % HEADS
    dim = tl.arange(0, D_HEAD)
    is_inside = index < count
    offset = ((row * 3 + part) * HEADS + head)[:, None] * D_HEAD + dim[None, :]
    x = tl.load(packed + offset, mask=is_inside[:, None], other=0.0).to(tl.float32)
    if part < 2:
        if NORMALIZES:
            gain = tl.where(part == 0, tl.load(query_gain + dim), tl.load(key_gain + dim))
            scale = tl.rsqrt(tl.sum(x * x, axis=1) / D_HEAD + eps)
            x = x * scale[:, None] * gain.to(tl.float32)[None, :]
        if ROTATES:
            c = _angles(cos, row % seq, is_inside, D_HEAD)
            s = _angles(sin, row % seq, is_inside, D_HEAD)
            x = _rotated(x, c, s, TILE, D_HEAD)
    else:
        if ADDS:
            added = (row * HEADS + head)[:, None] * D_HEAD + dim[None, :]
            e = tl.load(extra + added, mask=is_inside[:, None], other=0.0).to(tl.float32)
            x += tl.load(factor).to(tl.float32) * e
    tl.store(prepared + offset, x, mask=is_inside[:, None])


@triton.jit
def forward(
    packed, out, logsumexp, starts, seq, num_heads, scale_log2,
    D_HEAD: tl.constexpr, TILE: tl.constexpr, DOCUMENTS: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0).to(tl.int64)
    batch, head = index // num_heads, index % num_heads
    d_model = num_heads * D_HEAD
    stride = 3 * d_model
    queries = packed + batch * seq * stride + head * D_HEAD
    mixed_values = out + batch * seq * d_model + head * D_HEAD
    # A single loop over all pairs of tiles in the causal mask, because a loop per tile of queries
    # would wait for its first loads.
    num_tiles = tl.cdiv(seq, TILE)
    num_pairs = num_tiles * (num_tiles + 1) // 2
    i, first = 0, 0
    if DOCUMENTS:
        starts += batch * seq
        i = tl.program_id(1)
        first = tl.load(starts + i * TILE).to(tl.int32) // TILE
        num_pairs = i - first + 1
    j = first
    top = tl.full([TILE], _NO_SCORE, tl.float32)
    total = tl.zeros([TILE], tl.float32)
    mixed = tl.zeros([TILE, D_HEAD], tl.float32)
    for _ in range(num_pairs):
        rows, columns = i * TILE + tl.arange(0, TILE), j * TILE + tl.arange(0, TILE)
        query = _load(queries, rows, seq, stride, D_HEAD)
        key = _load(queries + d_model, columns, seq, stride, D_HEAD)
        value = _load(queries + 2 * d_model, columns, seq, stride, D_HEAD)
        scores = tl.dot(query, tl.trans(key))
        is_seen = rows[:, None] >= columns[None, :]
        if DOCUMENTS:
            is_seen &= _row_starts(starts, rows, seq)[:, None] <= columns[None, :]
        scores = tl.where(is_seen, scores, -float("inf"))
        # At a new tile of queries, this scales the accumulators of the previous one to zero.
        top = tl.where(j == first, _NO_SCORE, top)
        higher = tl.maximum(top, tl.max(scores, 1) * scale_log2)
        weights = tl.exp2(scores * scale_log2 - higher[:, None])
        fade = tl.exp2(top - higher)
        total = total * fade + tl.sum(weights, 1)
        mixed = tl.dot(weights.to(value.dtype), value, mixed * fade[:, None])
        top = higher
        is_last = j == i
        if is_last:
            _store(mixed_values, mixed / total[:, None], rows, seq, d_model, D_HEAD)
            row_logs = (top + tl.log2(total)) * _LN_2
            tl.store(logsumexp + index * seq + rows, row_logs, mask=rows < seq)
        i, j = tl.where(is_last, i + 1, i), tl.where(is_last, 0, j + 1)


@triton.jit
def _place(seq, num_heads, TILE: tl.constexpr):
    """This program's first row, head index over the batch, sequence, and head in the sequence."""
    num_tiles = tl.cdiv(seq, TILE)
    index = tl.program_id(0) // num_tiles
    first = tl.program_id(0) % num_tiles * TILE
    return first, index.to(tl.int64), (index // num_heads).to(tl.int64), index % num_heads


@triton.jit
def _row_logs(logsumexp, rows, seq):
    """Row logsumexps in base 2; infinite beyond the sequence, so that weights there are zero."""
    log = tl.load(logsumexp + rows, mask=rows < seq, other=float("inf"))
    return log / _LN_2


@triton.jit
def _row_starts(starts, rows, seq):
    return tl.load(starts + rows, mask=rows < seq, other=0).to(tl.int32)


@triton.jit
def _store_back(
    d_packed, packed, offset, dy, rows, seq, stride, cos, sin, gain, d_gain, eps,
    TILE: tl.constexpr, D_HEAD: tl.constexpr, ROTATES: tl.constexpr, NORMALIZES: tl.constexpr,
):  # fmt: skip
    """Propagate dy back through RoPE and norm. With n = x / √(mean(x²) + eps) and y = n · gain:

    dx = (dy · gain - n · mean(dy · gain · n)) / √(mean(x²) + eps);   dgain = Σ dy · n
    """
    if ROTATES:
        c = _angles(cos, rows, rows < seq, D_HEAD)
        s = _angles(sin, rows, rows < seq, D_HEAD)
        dy = _rotated(dy, c, -s, TILE, D_HEAD)
    if NORMALIZES:
        dim = tl.arange(0, D_HEAD)
        x = _load(packed + offset, rows, seq, stride, D_HEAD).to(tl.float32)
        scale = tl.rsqrt(tl.sum(x * x, axis=1) / D_HEAD + eps)[:, None]
        n = x * scale
        program = tl.program_id(0).to(tl.int64)
        tl.store(d_gain + program * D_HEAD + dim, tl.sum(dy * n, axis=0))
        dy = dy * tl.load(gain + dim).to(tl.float32)[None, :]
        dy = (dy - n * (tl.sum(dy * n, axis=1) / D_HEAD)[:, None]) * scale
    _store(d_packed + offset, dy, rows, seq, stride, D_HEAD)


@triton.jit
def _add_query_gradient(
    d_query, query, d_mixed, sums, log, rows, own, keys, values, begin, seq, stride, scale_log2,
    MASKS: tl.constexpr, DOCUMENTS: tl.constexpr, TILE: tl.constexpr, D_HEAD: tl.constexpr,
):  # fmt: skip
    """Add the gradient that a tile of queries receives from a tile of keys."""
    columns = begin + tl.arange(0, TILE)
    key = _load(keys, columns, seq, stride, D_HEAD)
    value = _load(values, columns, seq, stride, D_HEAD)
    scores = tl.dot(query, tl.trans(key))
    d_weights = tl.dot(d_mixed, tl.trans(value))
    weights = tl.exp2(scores * scale_log2 - log[:, None])
    if MASKS:
        weights = tl.where(rows[:, None] >= columns[None, :], weights, 0.0)
    if DOCUMENTS:
        weights = tl.where(own[:, None] <= columns[None, :], weights, 0.0)
    d_scores = weights * (d_weights - sums[:, None])
    return tl.dot(d_scores.to(key.dtype), key, d_query)


@triton.jit
def query_gradient(
    source, packed, d_out, out, logsumexp, sums, starts, d_packed,
    cos, sin, query_gain, key_gain, extra, factor, d_gains, d_extra, d_factor,
    eps, seq, num_heads, scale,
    D_HEAD: tl.constexpr, ROTATES: tl.constexpr, NORMALIZES: tl.constexpr, ADDS: tl.constexpr,
    DOCUMENTS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile of queries; stores each row's Σ out · d_out for `key_gradient`."""
    first, index, batch, head = _place(seq, num_heads, TILE)
    d_model = num_heads * D_HEAD
    stride = 3 * d_model
    scale_log2 = scale / _LN_2
    offset = batch * seq * stride + head * D_HEAD
    queries = source + offset
    keys, values = queries + d_model, queries + 2 * d_model
    mixed_offset = batch * seq * d_model + head * D_HEAD
    rows = first + tl.arange(0, TILE)
    query = _load(queries, rows, seq, stride, D_HEAD)
    d_mixed = _load(d_out + mixed_offset, rows, seq, d_model, D_HEAD)
    mixed = _load(out + mixed_offset, rows, seq, d_model, D_HEAD)
    row_sums = tl.sum(mixed.to(tl.float32) * d_mixed.to(tl.float32), 1)
    tl.store(sums + index * seq + rows, row_sums, mask=rows < seq)
    log = _row_logs(logsumexp + index * seq, rows, seq)
    d_query = tl.zeros([TILE, D_HEAD], tl.float32)
    first_key, own = 0, rows
    if DOCUMENTS:
        starts += batch * seq
        own = _row_starts(starts, rows, seq)
        first_key = tl.load(starts + first).to(tl.int32) // TILE * TILE
    for begin in range(first_key, first, TILE):
        d_query = _add_query_gradient(
            d_query, query, d_mixed, row_sums, log, rows, own, keys, values, begin,
            seq, stride, scale_log2, False, DOCUMENTS, TILE, D_HEAD,
        )  # fmt: skip
    d_query = _add_query_gradient(
        d_query, query, d_mixed, row_sums, log, rows, own, keys, values, first,
        seq, stride, scale_log2, True, DOCUMENTS, TILE, D_HEAD,
    )  # fmt: skip
    _store_back(
        d_packed, packed, offset, d_query * scale, rows, seq, stride, cos, sin,
        query_gain, d_gains, eps, TILE, D_HEAD, ROTATES, NORMALIZES,
    )  # fmt: skip


@triton.jit
def _add_key_gradient(
    d_key, d_value, key, value, columns, queries, d_mixed_values, logsumexp, sums, starts, begin,
    seq, stride, d_model, scale_log2,
    MASKS: tl.constexpr, DOCUMENTS: tl.constexpr, TILE: tl.constexpr, D_HEAD: tl.constexpr,
):  # fmt: skip
    """Add the gradients that a tile of keys and values receives from a tile of queries. Scores are
    transposed, as the last two matmuls need them."""
    rows = begin + tl.arange(0, TILE)
    query = _load(queries, rows, seq, stride, D_HEAD)
    d_mixed = _load(d_mixed_values, rows, seq, d_model, D_HEAD)
    log = _row_logs(logsumexp, rows, seq)
    row_sums = tl.load(sums + rows, mask=rows < seq, other=0.0)
    scores = tl.dot(key, tl.trans(query))
    d_weights = tl.dot(value, tl.trans(d_mixed))
    weights = tl.exp2(scores * scale_log2 - log[None, :])
    if MASKS:
        weights = tl.where(rows[None, :] >= columns[:, None], weights, 0.0)
    if DOCUMENTS:
        own = _row_starts(starts, rows, seq)
        weights = tl.where(own[None, :] <= columns[:, None], weights, 0.0)
    d_value = tl.dot(weights.to(value.dtype), d_mixed, d_value)
    d_scores = weights * (d_weights - row_sums[None, :])
    return tl.dot(d_scores.to(key.dtype), query, d_key), d_value


@triton.jit
def key_gradient(
    source, packed, d_out, out, logsumexp, sums, starts, d_packed,
    cos, sin, query_gain, key_gain, extra, factor, d_gains, d_extra, d_factor,
    eps, seq, num_heads, scale,
    D_HEAD: tl.constexpr, ROTATES: tl.constexpr, NORMALIZES: tl.constexpr, ADDS: tl.constexpr,
    DOCUMENTS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile of keys and values."""
    first, index, batch, head = _place(seq, num_heads, TILE)
    d_model = num_heads * D_HEAD
    stride = 3 * d_model
    scale_log2 = scale / _LN_2
    offset = batch * seq * stride + head * D_HEAD
    queries = source + offset
    mixed_offset = batch * seq * d_model + head * D_HEAD
    d_mixed_values = d_out + mixed_offset
    logsumexp += index * seq
    sums += index * seq
    end = seq
    if DOCUMENTS:
        starts += batch * seq
        end = first + TILE
        while tl.load(starts + end, mask=end < seq, other=first + TILE) < first + TILE:
            end += TILE
    columns = first + tl.arange(0, TILE)
    key = _load(queries + d_model, columns, seq, stride, D_HEAD)
    value = _load(queries + 2 * d_model, columns, seq, stride, D_HEAD)
    d_key, d_value = _add_key_gradient(
        tl.zeros([TILE, D_HEAD], tl.float32), tl.zeros([TILE, D_HEAD], tl.float32),
        key, value, columns, queries, d_mixed_values, logsumexp, sums, starts, first,
        seq, stride, d_model, scale_log2, True, DOCUMENTS, TILE, D_HEAD,
    )  # fmt: skip
    for begin in range(first + TILE, end, TILE):
        d_key, d_value = _add_key_gradient(
            d_key, d_value, key, value, columns, queries, d_mixed_values, logsumexp, sums, starts,
            begin, seq, stride, d_model, scale_log2, False, DOCUMENTS, TILE, D_HEAD,
        )  # fmt: skip
    of_keys = d_gains + tl.num_programs(0).to(tl.int64) * D_HEAD
    _store_back(
        d_packed, packed, offset + d_model, d_key * scale, columns, seq, stride, cos, sin,
        key_gain, of_keys, eps, TILE, D_HEAD, ROTATES, NORMALIZES,
    )  # fmt: skip
    if ADDS:
        e = _load(extra + mixed_offset, columns, seq, d_model, D_HEAD).to(tl.float32)
        d_e = d_value * tl.load(factor).to(tl.float32)
        _store(d_extra + mixed_offset, d_e, columns, seq, d_model, D_HEAD)
        tl.store(d_factor + tl.program_id(0), tl.sum(tl.sum(d_value * e, axis=1), axis=0))
    _store(d_packed + offset + 2 * d_model, d_value, columns, seq, stride, D_HEAD)
