"""Backward of `gluon_forward`: all gradients of a tile, on transposed tiles [channels, 16 tokens].

With C = dO Vᵀ diag(β), the algebra of `triton_kernels` on 16x16 matrices, each kept beside its transpose, which the
tensor core makes; then 32 channels of q, k and the gate at a time, decays computed again. Sums for dt_bias stay in
shared memory and those for A_log in registers until a program has walked over all its tiles.
"""

from draftc.runtime.kda.gluon_tiles import (
    ACC,
    AS_LEFT,
    AS_LEFT64,
    CHANNELS32,
    COL,
    COPY32,
    COPY64,
    FLAT,
    FLAT2,
    HALF_LOG2E,
    LANES,
    LEFT32,
    LN2,
    PACKED,
    PARTIAL,
    RIGHT32,
    ROW,
    SAFE_EXPONENT,
    SHARED32,
    SHARED64,
    VECTOR,
    across_border,
    async_copy,
    barrier,
    by_token,
    copy_both,
    copy_three,
    exp2_fast,
    from_reference,
    gl,
    gluon,
    head_rate,
    joined_channels32,
    joined_channels64,
    kept_tf32,
    load_rounded,
    log2_decay,
    mma_v2,
    nearest_tf32,
    packed,
    product,
    rounded_pair,
    same_segment,
    split_channels32,
    split_channels64,
    summed_channels,
    toward_border,
    unpacked,
)


@gluon.jit
def kept_matrix(buffer, i: gl.constexpr):
    """A constant 16x16 matrix out of shared memory, as the right operand of a product over tokens."""
    return gl.convert_layout(gl.permute(by_token(unpacked(buffer.index(i).load(PACKED))), [1, 0]), RIGHT32)


@gluon.jit
def summed_fine(moved, matrix, acc):
    """`moved @ matrix + acc` by two terms of tf32, so that what rows add and take cancels to float32 rounding."""
    fine = gl.convert_layout(by_token(moved - kept_tf32(moved)), LEFT32)
    coarse = gl.convert_layout(by_token(moved), LEFT32)
    summed = mma_v2(coarse, matrix, acc, input_precision="tf32")
    return mma_v2(fine, matrix, summed, input_precision="tf32")


@gluon.jit
def segment_gradients(kk, qq, C1, C2, C1T, C2T, G, sums):
    """Gradients of q, k and the log decays from pairs of a segment, which share one reference of their exponents.

    Both sides of a pair use the operands as the products rounded them: what it adds at its later row and takes at its
    earlier one is the same number.
    """
    zero = gl.zeros([32, 16], gl.float32, layout=ACC)
    up = exp2_fast(G)
    down = exp2_fast(-G)
    low = rounded_pair(kk * down)
    high = rounded_pair(kk * up)
    query = rounded_pair(qq * up)
    back = product(query, C1T, product(high, C2T, zero))
    to_q = product(low, C1, zero)
    to_k = product(low, C2, zero)
    moved = query.to(gl.float32) * to_q + high.to(gl.float32) * to_k - low.to(gl.float32) * back
    to_q = up * to_q
    to_k = up * to_k + down * back
    return to_q, to_k, summed_fine(moved, kept_matrix(sums, 1), zero)


@gluon.jit
def border_gradients(falls, kk, qq, C1, C2, C1T, C2T, to_fall, ii, jj, s: gl.constexpr):
    """As `segment_gradients`, from pairs across borders between halves of s rows, on top of `to_fall`."""
    zero = gl.zeros([32, 16], gl.float32, layout=ACC)
    chosen = gl.convert_layout(gl.permute(by_token(toward_border(ii, jj, s)), [1, 0]), RIGHT32)
    near = exp2_fast(mma_v2(falls, chosen, zero, input_precision="tf32"))
    keys = (kk * near).to(gl.bfloat16)
    none = gl.zeros([16, 16], gl.bfloat16, layout=ACC)
    meet = across_border(ii, jj, s)
    meet_t = across_border(jj, ii, s)
    to_q = near * product(keys, gl.where(meet, C1, none), zero)
    queries, reads = (qq * near).to(gl.bfloat16), gl.where(meet_t, C1T, none)
    to_k = product(keys, gl.where(meet, C2, gl.where(meet_t, C2T, none)), zero)
    to_k = near * product(queries, reads, to_k)
    back = gl.convert_layout(gl.permute(by_token(toward_border(jj, ii, s)), [1, 0]), RIGHT32)
    return to_q, to_k, summed_fine(qq * to_q + kk * to_k, back, to_fall)


@gluon.jit
def unbounded_gradients(falls, kk, qq, C1, C2, C1T, C2T, G, sums, ii, jj, ROWS: gl.constexpr):
    """Gradients of q, k and the log decays of 32 channels under a gate without a bound."""
    zero = gl.zeros([32, 16], gl.float32, layout=ACC)
    none = gl.zeros([16, 16], gl.bfloat16, layout=ACC)
    if gl.max(gl.max(gl.abs(G), 1), 0) < SAFE_EXPONENT:
        near = same_segment(ii, jj, 8)
        to_q, to_k, to_fall = segment_gradients(
            kk, qq, gl.where(near, C1, none), gl.where(near, C2, none), gl.where(near, C1T, none),
            gl.where(near, C2T, none), G, sums,
        )  # fmt: skip
        if ROWS == 16:
            more_q, more_k, to_fall = border_gradients(falls, kk, qq, C1, C2, C1T, C2T, to_fall, ii, jj, 8)
            to_q += more_q
            to_k += more_k
    else:
        to_q = zero
        to_k = zero
        to_fall = zero
        for level in gl.static_range(4):
            if (1 << level) < ROWS:
                more_q, more_k, to_fall = border_gradients(falls, kk, qq, C1, C2, C1T, C2T, to_fall, ii, jj, 1 << level)
                to_q += more_q
                to_k += more_k
    return to_q, to_k, to_fall


@gluon.jit
def channel_gradients(
    raw, keys, queries, bias, rate, bound, C1, C2, C1T, C2T, same, along_q, along_k, sums, ii, jj,
    ROWS: gl.constexpr, BOUNDED: gl.constexpr,
):  # fmt: skip
    """dq, dk, d(raw gate) of 32 channels, and what they add to the sums for dt_bias and for A_log."""
    zero = gl.zeros([32, 16], gl.float32, layout=ACC)
    r = raw.to(gl.float32) + bias[:, None]
    kk = keys.to(gl.float32)
    qq = queries.to(gl.float32)
    fall, slope = log2_decay(r, rate, bound, BOUNDED)
    falls = gl.convert_layout(by_token(nearest_tf32(fall)), LEFT32)
    G = mma_v2(falls, kept_matrix(sums, 0), zero, input_precision="tf32")
    if BOUNDED:
        to_q, to_k, to_fall = segment_gradients(kk, qq, C1, C2, C1T, C2T, G, sums)
    else:
        to_q, to_k, to_fall = unbounded_gradients(falls, kk, qq, C1, C2, C1T, C2T, G, sums, ii, jj, ROWS)
    to_q += same[None, :] * kk - along_q[None, :] * qq
    to_k += same[None, :] * qq - along_k[None, :] * kk
    to_raw = to_fall * slope
    if BOUNDED:
        to_rate = to_raw * r
    else:
        to_rate = to_fall * (fall * LN2)
    rate_sum = gl.convert_layout(gl.sum(gl.sum(gl.sum(to_rate.reshape([4, 8, 2, 4, 2]), 4), 2), 0), LANES)
    bias_sum = gl.sum(gl.sum(to_raw.reshape([32, 2, 4, 2]), 3), 1)
    return to_q, to_k, to_raw, bias_sum, rate_sum


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
def weighted_gradients(
    dP, dPT, R, RT, q_rows, k_rows, rows, q_cols, k_cols, cols, scale, bound, ii, jj,
    ROWS: gl.constexpr, BOUNDED: gl.constexpr,
):  # fmt: skip
    """Gradients of the pairs below the diagonal, for q and for k, with transposes: norms and lines included.

    `rows` and `cols` are β by row and by column, `q_*` and `k_*` the norms likewise.
    """
    lower = (ii > jj) & same_segment(ii, jj, ROWS)
    upper = (ii < jj) & same_segment(ii, jj, ROWS)
    C1 = gl.where(lower, dP * ((scale * q_rows)[:, None] * k_cols[None, :]), 0.0)
    C2 = gl.where(lower, R * ((-rows * k_rows)[:, None] * k_cols[None, :]), 0.0)
    C1T = gl.where(upper, dPT * ((scale * k_rows)[:, None] * q_cols[None, :]), 0.0)
    C2T = gl.where(upper, RT * (k_rows[:, None] * (-cols * k_cols)[None, :]), 0.0)
    if BOUNDED:
        line = exp2_fast((bound * HALF_LOG2E) * gl.abs(ii - jj).to(gl.float32))
        C1 = C1 * line
        C2 = C2 * line
        C1T = C1T * line
        C2T = C2T * line
    return C1.to(gl.bfloat16), C2.to(gl.bfloat16), C1T.to(gl.bfloat16), C2T.to(gl.bfloat16)


@gluon.jit
def pairs_backward(
    C, C_half, X, ZT, ZT_half, q_rows, k_rows, rows, q_cols, k_cols, cols, scale, bound, ii, jj,
    ROWS: gl.constexpr, BOUNDED: gl.constexpr,
):  # fmt: skip
    """The 16x16 algebra: diag R, q_i·dq_i and k_i·dk_i over squared norms, diagonal of dP, `weighted_gradients`."""
    small = gl.zeros([16, 16], gl.float32, layout=ACC)
    diagonal = ii == jj
    dP = product(C_half, X, small)
    dPT = product(X, C_half, small)
    dPT_half = dPT.to(gl.bfloat16)
    R = product(ZT_half, dPT_half, small)
    RT = product(dPT_half, ZT_half, small)
    eye = gl.where(diagonal, 1.0, 0.0).to(gl.bfloat16)
    Z = product(eye, ZT_half, small)
    CT = product(eye, C_half, small)
    on_diagonal = gl.sum(gl.where(diagonal, R, 0.0), 0)
    along_q = gl.sum(ZT * CT, 0) * q_cols * q_cols
    along_k = (2.0 * on_diagonal - gl.sum(Z * C, 0)) * k_cols * k_cols
    same = gl.sum(gl.where(diagonal, dP, 0.0), 0) * q_cols * k_cols * scale
    C1, C2, C1T, C2T = weighted_gradients(
        dP, dPT, R, RT, q_rows, k_rows, rows, q_cols, k_cols, cols, scale, bound, ii, jj, ROWS, BOUNDED
    )
    return on_diagonal, along_q, along_k, same, C1, C2, C1T, C2T


@gluon.jit
def tiles_backward(
    q, k, v, decay, beta, A_log, dt_bias, packs, norms, dout, dq, dk, dv, ddecay, dbeta, partial, tiles, scale, bound,
    ROWS: gl.constexpr, HEADS: gl.constexpr, WIDTH: gl.constexpr, BOUNDED: gl.constexpr,
):  # fmt: skip
    """All gradients; `partial` gets dt_bias of every program `[programs / h, h, d]`, then A_log `[programs]`."""
    pid = gl.program_id(0)
    step = gl.num_programs(0)
    i_h = pid % HEADS
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
    for i in gl.static_range(4):
        bias_sums.index(i).store(gl.zeros([32, 4], gl.float32, layout=PARTIAL))
    rate_sums = gl.zeros([8, 4], gl.float32, layout=LANES)
    vector = gl.arange(0, 64, layout=VECTOR)
    lines = gl.arange(0, 16, layout=gl.SliceLayout(1, COPY64))[:, None] * (HEADS * WIDTH)
    copied = lines + gl.arange(0, 64, layout=gl.SliceLayout(0, COPY64))[None, :] + i_h * WIDTH
    of_values = i_h * WIDTH + gl.arange(0, 16, layout=gl.SliceLayout(0, AS_LEFT64))[None, :] * (HEADS * WIDTH)
    of_values = of_values + gl.arange(0, 64, layout=gl.SliceLayout(1, AS_LEFT64))[:, None]
    of_keys = i_h * WIDTH + gl.arange(0, 16, layout=gl.SliceLayout(0, CHANNELS32))[None, :] * (HEADS * WIDTH)
    of_keys = of_keys + gl.arange(0, 32, layout=gl.SliceLayout(1, CHANNELS32))[:, None]
    ii = gl.arange(0, 16, layout=ROW)[:, None]
    jj = gl.arange(0, 16, layout=COL)[None, :]
    by_col = gl.arange(0, 16, layout=COL)
    flat = gl.arange(0, 256, layout=PACKED)
    rate = head_rate(A_log, i_h)
    small = gl.zeros([16, 16], gl.float32, layout=ACC)
    tall = gl.zeros([64, 16], gl.float32, layout=ACC)
    REACH: gl.constexpr = ROWS if BOUNDED else 8
    sums.index(0).store(packed(from_reference(ii, jj, BOUNDED)))
    sums.index(1).store(packed(gl.where((ii <= jj) & same_segment(ii, jj, REACH), 1.0, 0.0)))
    diagonal = ii == jj
    for i in gl.static_range(4):
        channels = dt_bias + i_h * WIDTH + 32 * i + gl.arange(0, 32, layout=gl.SliceLayout(1, CHANNELS32))
        b_bias.index(i).store(load_rounded(channels))
    next_keys = i_h * WIDTH + (pid // HEADS) * (16 * HEADS * WIDTH)
    next_keys = next_keys + gl.arange(0, 16, layout=gl.SliceLayout(1, COPY32))[:, None] * (HEADS * WIDTH)
    next_keys = next_keys + gl.arange(0, 32, layout=gl.SliceLayout(0, COPY32))[None, :]
    next_values = copied + (pid // HEADS) * (16 * HEADS * WIDTH)
    next_exists = next_values >= 0
    copy_both(b_o, dout, next_values, next_exists)
    copy_both(b_v, v, next_values, next_exists)
    async_copy.async_copy_global_to_shared(b_packs, packs + pid * 256 + flat)
    async_copy.async_copy_global_to_shared(b_norms, norms + pid * 64 + vector)
    async_copy.commit_group()
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
        low = summed_channels(b_o.index(0).load(AS_LEFT))
        C = product(low, summed_channels(b_v.index(0).load(AS_LEFT)), small)
        high = summed_channels(b_o.index(1).load(AS_LEFT))
        C = product(high, summed_channels(b_v.index(1).load(AS_LEFT)), C)
        both = unpacked(b_packs.load(PACKED)).to(gl.float32)
        ZT = gl.where(ii <= jj, both, 0.0)
        X = gl.where(ii > jj, both, gl.where(diagonal, 1.0, 0.0)).to(gl.bfloat16)
        ZT_half = ZT.to(gl.bfloat16)
        q_cols = b_norms.slice(0, 16).load(COL)
        k_cols = b_norms.slice(16, 16).load(COL)
        cols = b_norms.slice(32, 16).load(COL)
        q_rows = b_norms.slice(0, 16).load(ROW)
        k_rows = b_norms.slice(16, 16).load(ROW)
        rows = b_norms.slice(32, 16).load(ROW)
        C = C * cols[None, :]
        C_half = C.to(gl.bfloat16)
        weights = (ZT * rows[:, None]).to(gl.bfloat16)
        for i in gl.static_range(2):
            b_dv = product(split_channels64(b_o.index(i).permute((1, 0)).load(AS_LEFT64)), weights, tall)
            gl.store(dv + values + 64 * i, joined_channels64(b_dv).to(gl.bfloat16))
        barrier()
        following = gl.minimum(tile + step, tiles - 1)
        copy_both(b_o, dout, next_values, next_exists)
        copy_both(b_v, v, next_values, next_exists)
        async_copy.async_copy_global_to_shared(b_packs, packs + following * 256 + flat)
        async_copy.async_copy_global_to_shared(b_norms, norms + following * 64 + vector)
        async_copy.commit_group()
        on_diagonal, along_q, along_k, same, C1, C2, C1T, C2T = pairs_backward(
            C, C_half, X, ZT, ZT_half, q_rows, k_rows, rows, q_cols, k_cols, cols, scale, bound, ii, jj, ROWS, BOUNDED
        )
        gl.store(dbeta + i_t * 16 * HEADS + i_h + by_col * HEADS, ((1.0 - cols) * on_diagonal).to(gl.bfloat16))
        for c in range(4):
            rate_sums = store_channels(
                c, rate_sums, b_g, b_k, b_q, b_bias, sums, bias_sums, decay, k, q, dq, dk, ddecay, next_keys, more,
                stored, rate, bound, C1, C2, C1T, C2T, same, along_q, along_k, ii, jj, ROWS, BOUNDED,
            )  # fmt: skip
    m = gl.arange(0, 32, layout=gl.SliceLayout(1, PARTIAL))
    for i in gl.static_range(4):
        mine = partial + pid // HEADS * (HEADS * WIDTH) + i_h * WIDTH + i * 32 + (m % 8) * 4 + m // 8
        gl.store(mine, gl.sum(bias_sums.index(i).load(PARTIAL), 1))
    gl.store(partial + step * WIDTH + pid, gl.sum(gl.sum(rate_sums, 1), 0))


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
