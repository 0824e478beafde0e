"""Backward of `gluon_forward`: all gradients of a tile, on transposed tiles [channels, 16 tokens].

With C = dO Vᵀ diag(β), the algebra of `triton_kernels` on 16x16 matrices, each kept beside its transpose, which the
tensor core makes; then 32 channels of q, k and the gate at a time (`gluon_gradients`). Sums for dt_bias stay in
shared memory and those for A_log in registers until a program has walked over all its tiles.
"""

from draftc.runtime.kda.gluon_gradients import channel_gradients, pairs_backward
from draftc.runtime.kda.gluon_tiles import (
    ACC,
    AS_LEFT,
    AS_LEFT64,
    CHANNELS32,
    COL,
    COPY32,
    FLAT,
    FLAT2,
    LANES,
    PACKED,
    PARTIAL,
    ROW,
    SHARED32,
    SHARED64,
    VECTOR,
    async_copy,
    barrier,
    copied_places,
    copy_both,
    copy_three,
    from_reference,
    gl,
    gluon,
    head_rate,
    joined_channels32,
    joined_channels64,
    load_rounded,
    packed,
    product,
    same_segment,
    split_channels32,
    split_channels64,
    summed_channels,
    unpacked,
)


@gluon.jit
def store_channels(
    c, rate_sums, b_g, b_k, b_q, b_bias, sums, bias_sums, decay, k, q, dq, dk, ddecay, next_places, more, stored,
    rate, bound, C1, C2, C1T, C2T, same, along_q, along_k, ii, jj, ROWS: gl.constexpr, BOUNDED: gl.constexpr,
):  # fmt: skip
    """Finish 32 channels of a tile, start the copies of the next one, and return the sums for A_log."""
    async_copy.wait_group(4)
    barrier()
    raw = split_channels32(b_g.index(c).permute((1, 0)).load(CHANNELS32))
    keys = split_channels32(b_k.index(c).permute((1, 0)).load(CHANNELS32))
    queries = split_channels32(b_q.index(c).permute((1, 0)).load(CHANNELS32))
    bias = b_bias.index(c).load(gl.SliceLayout(1, CHANNELS32)).reshape([8, 4]).permute([1, 0]).reshape([32])
    bias = gl.convert_layout(bias, ROW)
    barrier()
    copy_three(b_g, b_k, b_q, c, decay, k, q, next_places, (next_places >= 0) & more, 32)
    to_q, to_k, to_raw, bias_sum, rate_sum = channel_gradients(
        raw, keys, queries, bias, rate, bound, C1, C2, C1T, C2T, same, along_q, along_k, sums, ii, jj, ROWS, BOUNDED
    )
    kept = bias_sums.index(c)
    kept.store(kept.load(PARTIAL) + gl.convert_layout(bias_sum, PARTIAL))
    places = stored + 32 * c
    gl.store(dq + places, joined_channels32(to_q).to(gl.bfloat16))
    gl.store(dk + places, joined_channels32(to_k).to(gl.bfloat16))
    gl.store(ddecay + places, joined_channels32(to_raw).to(gl.bfloat16))
    return rate_sums + rate_sum


@gluon.jit
def transposed_places(i_h, channels: gl.constexpr, layout: gl.constexpr, HEADS: gl.constexpr, WIDTH: gl.constexpr):
    """Offsets `[channels, 16]` of the first channels of head `i_h` in the first tile."""
    places = i_h * WIDTH + gl.arange(0, 16, layout=gl.SliceLayout(0, layout))[None, :] * (HEADS * WIDTH)
    return places + gl.arange(0, channels, layout=gl.SliceLayout(1, layout))[:, None]


@gluon.jit
def shared_buffers():
    """Shared memory: dO, V; gates, k, q; sums for dt_bias; what forward kept; dt_bias, matrices of running sums."""
    b_o = gl.allocate_shared_memory(gl.bfloat16, [2, 16, 64], SHARED64)
    b_v = gl.allocate_shared_memory(gl.bfloat16, [2, 16, 64], SHARED64)
    b_g = gl.allocate_shared_memory(gl.bfloat16, [4, 16, 32], SHARED32)
    b_k = gl.allocate_shared_memory(gl.bfloat16, [4, 16, 32], SHARED32)
    b_q = gl.allocate_shared_memory(gl.bfloat16, [4, 16, 32], SHARED32)
    bias_sums = gl.allocate_shared_memory(gl.float32, [4, 32, 4], FLAT2)
    b_packs = gl.allocate_shared_memory(gl.bfloat16, [256], FLAT)
    b_norms = gl.allocate_shared_memory(gl.float32, [64], FLAT)
    b_bias = gl.allocate_shared_memory(gl.float32, [4, 32], FLAT)
    sums = gl.allocate_shared_memory(gl.float32, [2, 256], FLAT)
    return b_o, b_v, b_g, b_k, b_q, bias_sums, b_packs, b_norms, b_bias, sums


@gluon.jit
def clear_sums(bias_sums):
    """Set the sums for dt_bias to zero."""
    for i in gl.static_range(4):
        bias_sums.index(i).store(gl.zeros([32, 4], gl.float32, layout=PARTIAL))


@gluon.jit
def stage_constants(
    sums, b_bias, A_log, dt_bias, i_h, ii, jj, WIDTH: gl.constexpr, ROWS: gl.constexpr, BOUNDED: gl.constexpr
):
    """Stage what all tiles of a program share: matrices of running sums and dt_bias; returns e^A_log."""
    rate = head_rate(A_log, i_h)
    REACH: gl.constexpr = ROWS if BOUNDED else 8
    sums.index(0).store(packed(from_reference(ii, jj, BOUNDED)))
    sums.index(1).store(packed(gl.where((ii <= jj) & same_segment(ii, jj, REACH), 1.0, 0.0)))
    for i in gl.static_range(4):
        channels = dt_bias + i_h * WIDTH + 32 * i + gl.arange(0, 32, layout=gl.SliceLayout(1, CHANNELS32))
        b_bias.index(i).store(load_rounded(channels))
    return rate


@gluon.jit
def copy_kept(b_o, b_v, b_packs, b_norms, dout, v, packs, norms, tile, places, exists, flat, vector):
    """Start the copies of dO and V of a tile and of what forward kept of it, as one group."""
    copy_both(b_o, dout, places, exists)
    copy_both(b_v, v, places, exists)
    async_copy.async_copy_global_to_shared(b_packs, packs + tile * 256 + flat)
    async_copy.async_copy_global_to_shared(b_norms, norms + tile * 64 + vector)
    async_copy.commit_group()


@gluon.jit
def outputs_by_values(b_o, b_v):
    """The product dO Vᵀ over 128 channels, `[16, 16]` float32 in ACC."""
    small = gl.zeros([16, 16], gl.float32, layout=ACC)
    low = summed_channels(b_o.index(0).load(AS_LEFT))
    C = product(low, summed_channels(b_v.index(0).load(AS_LEFT)), small)
    high = summed_channels(b_o.index(1).load(AS_LEFT))
    return product(high, summed_channels(b_v.index(1).load(AS_LEFT)), C)


@gluon.jit
def kept_pair(b_packs, diagonal, ii, jj):
    """X in bfloat16 and Zᵀ in float32, out of the one matrix that forward kept."""
    both = unpacked(b_packs.load(PACKED)).to(gl.float32)
    ZT = gl.where(ii <= jj, both, 0.0)
    X = gl.where(ii > jj, both, gl.where(diagonal, 1.0, 0.0)).to(gl.bfloat16)
    return X, ZT


@gluon.jit
def kept_vectors(b_norms, layout: gl.constexpr):
    """Inverse norms of q and of k, and β, by the rows or the columns of ACC."""
    return b_norms.slice(0, 16).load(layout), b_norms.slice(16, 16).load(layout), b_norms.slice(32, 16).load(layout)


@gluon.jit
def store_value_gradients(dv, places, b_o, weights):
    """Gradient of V, (Z diag(β))ᵀ dO of a tile, 64 channels at a time."""
    tall = gl.zeros([64, 16], gl.float32, layout=ACC)
    for i in gl.static_range(2):
        b_dv = product(split_channels64(b_o.index(i).permute((1, 0)).load(AS_LEFT64)), weights, tall)
        gl.store(dv + places + 64 * i, joined_channels64(b_dv).to(gl.bfloat16))


@gluon.jit
def store_partial(partial, bias_sums, rate_sums, pid, step, i_h, HEADS: gl.constexpr, WIDTH: gl.constexpr):
    """What a program summed over its tiles for dt_bias and for A_log."""
    m = gl.arange(0, 32, layout=gl.SliceLayout(1, PARTIAL))
    for i in gl.static_range(4):
        mine = partial + pid // HEADS * (HEADS * WIDTH) + i_h * WIDTH + i * 32 + (m % 8) * 4 + m // 8
        gl.store(mine, gl.sum(bias_sums.index(i).load(PARTIAL), 1))
    gl.store(partial + step * WIDTH + pid, gl.sum(gl.sum(rate_sums, 1), 0))


@gluon.jit
def tiles_backward(
    q, k, v, decay, beta, A_log, dt_bias, packs, norms, dout, dq, dk, dv, ddecay, dbeta, partial, tiles, scale, bound,
    ROWS: gl.constexpr, HEADS: gl.constexpr, WIDTH: gl.constexpr, BOUNDED: gl.constexpr,
):  # fmt: skip
    """All gradients; `partial` gets dt_bias of every program `[programs / h, h, d]`, then A_log `[programs]`."""
    pid = gl.program_id(0)
    step = gl.num_programs(0)
    i_h = pid % HEADS
    b_o, b_v, b_g, b_k, b_q, bias_sums, b_packs, b_norms, b_bias, sums = shared_buffers()
    clear_sums(bias_sums)
    rate_sums = gl.zeros([8, 4], gl.float32, layout=LANES)
    vector = gl.arange(0, 64, layout=VECTOR)
    copied = copied_places(i_h, HEADS, WIDTH)
    of_values = transposed_places(i_h, 64, AS_LEFT64, HEADS, WIDTH)
    of_keys = transposed_places(i_h, 32, CHANNELS32, HEADS, WIDTH)
    ii = gl.arange(0, 16, layout=ROW)[:, None]
    jj = gl.arange(0, 16, layout=COL)[None, :]
    by_col = gl.arange(0, 16, layout=COL)
    flat = gl.arange(0, 256, layout=PACKED)
    rate = stage_constants(sums, b_bias, A_log, dt_bias, i_h, ii, jj, WIDTH, ROWS, BOUNDED)
    diagonal = ii == jj
    next_keys = i_h * WIDTH + (pid // HEADS) * (16 * HEADS * WIDTH)
    next_keys = next_keys + gl.arange(0, 16, layout=gl.SliceLayout(1, COPY32))[:, None] * (HEADS * WIDTH)
    next_keys = next_keys + gl.arange(0, 32, layout=gl.SliceLayout(0, COPY32))[None, :]
    next_values = copied + (pid // HEADS) * (16 * HEADS * WIDTH)
    copy_kept(b_o, b_v, b_packs, b_norms, dout, v, packs, norms, pid, next_values, next_values >= 0, flat, vector)
    for i in gl.static_range(4):
        copy_three(b_g, b_k, b_q, i, decay, k, q, next_keys, next_keys >= 0, 32)
    for tile in range(pid, tiles, step):
        i_t = tile // HEADS
        values = of_values + i_t * (16 * HEADS * WIDTH)
        stored = of_keys + i_t * (16 * HEADS * WIDTH)
        next_values += (step // HEADS) * (16 * HEADS * WIDTH)
        next_keys += (step // HEADS) * (16 * HEADS * WIDTH)
        more = tile + step < tiles
        next_exists = (next_values >= 0) & more
        async_copy.wait_group(4)
        barrier()
        C = outputs_by_values(b_o, b_v)
        X, ZT = kept_pair(b_packs, diagonal, ii, jj)
        q_cols, k_cols, cols = kept_vectors(b_norms, COL)
        q_rows, k_rows, rows = kept_vectors(b_norms, ROW)
        C = C * cols[None, :]
        store_value_gradients(dv, values, b_o, (ZT * rows[:, None]).to(gl.bfloat16))
        barrier()
        following = gl.minimum(tile + step, tiles - 1)
        copy_kept(b_o, b_v, b_packs, b_norms, dout, v, packs, norms, following, next_values, next_exists, flat, vector)
        on_diagonal, along_q, along_k, same, C1, C2, C1T, C2T = pairs_backward(
            C, X, ZT, q_rows, k_rows, rows, q_cols, k_cols, cols, scale, bound, ii, jj, ROWS, BOUNDED
        )
        gl.store(dbeta + i_t * 16 * HEADS + i_h + by_col * HEADS, ((1.0 - cols) * on_diagonal).to(gl.bfloat16))
        for c in range(4):
            rate_sums = store_channels(
                c, rate_sums, b_g, b_k, b_q, b_bias, sums, bias_sums, decay, k, q, dq, dk, ddecay, next_keys, more,
                stored, rate, bound, C1, C2, C1T, C2T, same, along_q, along_k, ii, jj, ROWS, BOUNDED,
            )  # fmt: skip
    store_partial(partial, bias_sums, rate_sums, pid, step, i_h, HEADS, WIDTH)


@gluon.jit
def reduce_partial(partial, to_bias, to_rate, programs, HEADS: gl.constexpr, WIDTH: gl.constexpr):
    """Sum `partial` of `tiles_backward` over `programs` of a head, in one fixed order; a program has 32 channels."""
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    i_h = gl.program_id(0)
    i_c = gl.program_id(1)
    rows = gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
    cols = i_c * 32 + gl.arange(0, 32, layout=gl.SliceLayout(0, layout))
    bias = gl.zeros([64, 32], gl.float32, layout=layout)
    rate = gl.zeros([64], gl.float32, layout=gl.SliceLayout(1, layout))
    for first in range(0, programs, 64):
        places = ((first + rows) * HEADS + i_h)[:, None] * WIDTH + cols[None, :]
        bias += gl.load(partial + places, mask=(first + rows < programs)[:, None], other=0.0)
        rates = partial + programs * (HEADS * WIDTH) + (first + rows) * HEADS + i_h
        rate += gl.load(rates, mask=first + rows < programs, other=0.0)
    gl.store(to_bias + i_h * WIDTH + cols, gl.sum(bias, 0))
    if i_c == 0:
        gl.store(to_rate + i_h, gl.sum(rate, 0))
