"""KDA forward in blocks of 8 or 16 rows of 128 channels, one warp a tile of 16 rows of one head (`gluon_tiles`).

The algebra is that of `triton_kernels`: pairs M and P, X = (I + diag(β) M)^-1, Z = P X, O = Z diag(β) V. Kept for
backward: X and Zᵀ as one matrix (X strictly below the diagonal, the rest Zᵀ), both norms and β: 768 bytes a tile.

With a bound, exponents are measured from the line of half the bound over all 16 rows. Without one, within 8 rows from
half of their total, as long as that keeps both factors normal (checked at run time), and at the border between them;
where the check fails, at borders of halves of 1, 2, 4 and 8 rows, where no exponent is above 0.
Programs walk over the tiles of one head, and copy the next one while they compute.
"""

from draftc.runtime.kda.gluon_tiles import (
    ACC,
    AS_LEFT,
    AS_RIGHT,
    COL,
    FLAT,
    HALF_LOG2E,
    LEFT,
    LEFT32,
    PACKED,
    RIGHT,
    RIGHT32,
    ROW,
    SAFE_EXPONENT,
    SHARED64,
    across_border,
    async_copy,
    barrier,
    by_token,
    copied_places,
    copy_both,
    copy_three,
    exp2_fast,
    from_reference,
    gl,
    gluon,
    head_rate,
    joined_channels,
    load_rounded,
    log2_decay,
    mma_v2,
    nearest_tf32,
    packed,
    product,
    product32,
    same_segment,
    split_channels,
    strength_of,
    toward_border,
)
from draftc.runtime.kda.triton_kernels import NORM_EPS


@gluon.jit
def border_pairs(M, P, kk, qq, falls, ii, jj, s: gl.constexpr):
    """M and P with the pairs that meet at borders between halves of s rows."""
    zero = gl.zeros([16, 64], gl.float32, layout=ACC)
    chosen = gl.convert_layout(by_token(toward_border(ii, jj, s)), LEFT32)
    near = exp2_fast(mma_v2(chosen, falls, zero, input_precision="tf32"))
    keys = (kk * near).to(gl.bfloat16)
    meet = across_border(ii, jj, s)
    M = gl.where(meet, product(keys, keys, M), M)
    P = gl.where(meet, product((qq * near).to(gl.bfloat16), keys, P), P)
    return M, P


@gluon.jit
def unbounded_pairs(M, P, G, kk, qq, falls, ii, jj, ROWS: gl.constexpr):
    """M and P with the pairs of 64 channels under a gate without a bound."""
    if gl.max(gl.max(gl.abs(G), 1), 0) < SAFE_EXPONENT:
        up = exp2_fast(G)
        low = (kk * exp2_fast(-G)).to(gl.bfloat16)
        near = same_segment(ii, jj, 8) & (ii > jj)
        M = gl.where(near, product((kk * up).to(gl.bfloat16), low, M), M)
        P = gl.where(near, product((qq * up).to(gl.bfloat16), low, P), P)
        if ROWS == 16:
            M, P = border_pairs(M, P, kk, qq, falls, ii, jj, 8)
    else:
        for level in gl.static_range(4):
            if (1 << level) < ROWS:
                M, P = border_pairs(M, P, kk, qq, falls, ii, jj, 1 << level)
    return M, P


@gluon.jit
def pairs_of_channels(
    c, M, P, q_square, k_square, same, b_g, b_k, b_q, b_bias, g, k, q, next_places, next_exists, rate, bound, sums,
    ii, jj, ROWS: gl.constexpr, BOUNDED: gl.constexpr,
):  # fmt: skip
    """What 64 channels add to M, P, the squares of both norms and the diagonal; starts the copies of the next tile."""
    zero = gl.zeros([16, 64], gl.float32, layout=ACC)
    async_copy.wait_group(2)
    barrier()
    raw = b_g.index(c).load(AS_RIGHT)
    keys = b_k.index(c).load(AS_LEFT)
    queries = b_q.index(c).load(AS_LEFT)
    barrier()
    copy_three(b_g, b_k, b_q, c, g, k, q, next_places, next_exists, 64)
    raw = raw.to(gl.float32) + b_bias.index(c).load(gl.SliceLayout(0, AS_RIGHT))[None, :]
    kk = gl.convert_layout(split_channels(keys), ACC).to(gl.float32)
    qq = gl.convert_layout(split_channels(queries), ACC).to(gl.float32)
    fall, _ = log2_decay(raw, rate, bound, BOUNDED)
    falls = gl.permute(by_token(gl.permute(split_channels(nearest_tf32(fall)), [1, 0])), [1, 0])
    falls = gl.convert_layout(falls, RIGHT32)
    q_square += gl.sum(qq * qq, 1)
    k_square += gl.sum(kk * kk, 1)
    G = mma_v2(gl.convert_layout(by_token(sums), LEFT32), falls, zero, input_precision="tf32")
    if BOUNDED:
        up = exp2_fast(G)
        low = (kk * exp2_fast(-G)).to(gl.bfloat16)
        M = product((kk * up).to(gl.bfloat16), low, M)
        P = product((qq * up).to(gl.bfloat16), low, P)
    else:
        same += gl.sum(qq * kk, 1)
        M, P = unbounded_pairs(M, P, G, kk, qq, falls, ii, jj, ROWS)
    return M, P, q_square, k_square, same


@gluon.jit
def inverse_and_transpose(A, ii, jj, ROWS: gl.constexpr):
    """X = (I + A)^-1 of a strictly lower triangular matrix and Xᵀ, doubled from segments of 2 rows."""
    zero = gl.zeros([16, 16], gl.float32, layout=ACC)
    A1 = gl.where(same_segment(ii, jj, 2), A, 0.0)
    eye = gl.where(ii == jj, 1.0, 0.0)
    X = eye - A1
    Y = eye - product32(eye, A1, zero)
    for level in gl.static_range(1, 4):
        if (1 << level) < ROWS:
            joint = gl.where(across_border(ii, jj, 1 << level), A, 0.0)
            joint = product32(Y, joint, zero)
            grown = X - product32(X, joint, zero)
            Y = Y - product32(joint, X, zero)
            X = grown
    return X, Y


@gluon.jit
def weighted_pairs(
    M, P, same, q_norm, k_norm, strength, scale, bound, ii, jj, ROWS: gl.constexpr, BOUNDED: gl.constexpr
):
    """diag(β) M and P with norms, scale and the decay of the line, outside of their triangles zero."""
    k_norms = gl.convert_layout(k_norm, COL)
    if BOUNDED:
        line = exp2_fast((bound * HALF_LOG2E) * (ii - jj).to(gl.float32))
        line = gl.where(same_segment(ii, jj, ROWS), line, 0.0)
        M = gl.where(ii > jj, M * line, 0.0)
        P = gl.where(ii >= jj, P * line, 0.0)
    else:
        P = gl.where(ii == jj, same[:, None], P)
    P = P * ((scale * q_norm)[:, None] * k_norms[None, :])
    return M * ((strength * k_norm)[:, None] * k_norms[None, :]), P


@gluon.jit
def load_logits(beta, i_t, i_h, by_col, by_row, HEADS: gl.constexpr):
    """Logits of β of 16 rows, by column and by row."""
    first = beta + i_t * 16 * HEADS + i_h
    cols = gl.load(first + by_col * HEADS)
    return cols, gl.load(first + by_row * HEADS)


@gluon.jit
def pairs_of_tile(
    b_g, b_k, b_q, b_bias, decay, k, q, next_places, next_exists, rate, bound, sums, ii, jj,
    ROWS: gl.constexpr, BOUNDED: gl.constexpr,
):  # fmt: skip
    """M, P and their diagonal over all 128 channels, before `weighted_pairs`, and the inverse norms of q and k."""
    M = gl.zeros([16, 16], gl.float32, layout=ACC)
    P = gl.zeros([16, 16], gl.float32, layout=ACC)
    q_square = gl.zeros([16], gl.float32, layout=ROW)
    k_square = gl.zeros([16], gl.float32, layout=ROW)
    same = gl.zeros([16], gl.float32, layout=ROW)
    for part in range(2):
        M, P, q_square, k_square, same = pairs_of_channels(
            part, M, P, q_square, k_square, same, b_g, b_k, b_q, b_bias, decay, k, q, next_places, next_exists,
            rate, bound, sums, ii, jj, ROWS, BOUNDED,
        )  # fmt: skip
    k_norm = gl.rsqrt(k_square + NORM_EPS)
    q_norm = gl.rsqrt(q_square + NORM_EPS)
    return M, P, same, q_norm, k_norm


@gluon.jit
def store_answer(pointers, weights, values, zero):
    """Store 64 channels of the weighted values."""
    answer = mma_v2(weights, gl.convert_layout(split_channels(values), RIGHT), zero)
    gl.store(pointers, gl.convert_layout(joined_channels(answer), AS_LEFT).to(gl.bfloat16))


@gluon.jit
def store_answers(out, places, weights, b_v, v, next_places, next_exists):
    """O of a tile out of its staged values, both halves of channels; starts the copies of the next values."""
    zero = gl.zeros([16, 64], gl.float32, layout=ACC)
    async_copy.wait_group(2)
    barrier()
    v_low = b_v.index(0).load(AS_RIGHT)
    v_high = b_v.index(1).load(AS_RIGHT)
    barrier()
    copy_both(b_v, v, next_places, next_exists)
    async_copy.commit_group()
    store_answer(out + places, weights, v_low, zero)
    store_answer(out + places + 64, weights, v_high, zero)


@gluon.jit
def store_kept(packs, norms, tile, X, Y, P, q_norm, k_norm, strength, by_row, flat, ii, jj):
    """What backward reads of a tile: X and Zᵀ as one matrix, then the norms of q and k, and β."""
    ZT = product32(Y, P, gl.zeros([16, 16], gl.float32, layout=ACC))
    gl.store(packs + tile * 256 + flat, packed(gl.where(ii > jj, X, ZT)).to(gl.bfloat16))
    gl.store(norms + tile * 64 + by_row, q_norm)
    gl.store(norms + tile * 64 + 16 + by_row, k_norm)
    gl.store(norms + tile * 64 + 32 + by_row, strength)


@gluon.jit
def tiles_forward(
    q, k, v, decay, beta, A_log, dt_bias, out, packs, norms, tiles, scale, bound,
    ROWS: gl.constexpr, HEADS: gl.constexpr, WIDTH: gl.constexpr, BOUNDED: gl.constexpr, SAVE: gl.constexpr,
):  # fmt: skip
    """O of every tile; where SAVE, also `packs [tiles, 256]` and `norms [tiles, 64]`. `tiles` counts rows times heads.

    The number of programs is a multiple of HEADS, so that each stays with its head.
    """
    pid = gl.program_id(0)
    step = gl.num_programs(0)
    i_h = pid % HEADS
    b_g = gl.allocate_shared_memory(gl.bfloat16, [2, 16, 64], SHARED64)
    b_k = gl.allocate_shared_memory(gl.bfloat16, [2, 16, 64], SHARED64)
    b_q = gl.allocate_shared_memory(gl.bfloat16, [2, 16, 64], SHARED64)
    b_v = gl.allocate_shared_memory(gl.bfloat16, [2, 16, 64], SHARED64)
    b_bias = gl.allocate_shared_memory(gl.float32, [2, 64], FLAT)
    copied = copied_places(i_h, HEADS, WIDTH)
    stored = i_h * WIDTH + gl.arange(0, 16, layout=gl.SliceLayout(1, AS_LEFT))[:, None] * (HEADS * WIDTH)
    stored = stored + gl.arange(0, 64, layout=gl.SliceLayout(0, AS_LEFT))[None, :]
    channels = gl.arange(0, 64, layout=gl.SliceLayout(0, AS_RIGHT))
    ii = gl.arange(0, 16, layout=ROW)[:, None]
    jj = gl.arange(0, 16, layout=COL)[None, :]
    by_row = gl.arange(0, 16, layout=ROW)
    by_col = gl.arange(0, 16, layout=COL)
    flat = gl.arange(0, 256, layout=PACKED)
    rate = head_rate(A_log, i_h)
    for c in gl.static_range(2):
        b_bias.index(c).store(load_rounded(dt_bias + i_h * WIDTH + 64 * c + channels))
    sums = from_reference(ii, jj, BOUNDED)
    small = gl.zeros([16, 16], gl.float32, layout=ACC)
    next_places = copied + (pid // HEADS) * (16 * HEADS * WIDTH)
    next_exists = next_places >= 0
    copy_three(b_g, b_k, b_q, 0, decay, k, q, next_places, next_exists, 64)
    copy_three(b_g, b_k, b_q, 1, decay, k, q, next_places, next_exists, 64)
    copy_both(b_v, v, next_places, next_exists)
    async_copy.commit_group()
    next_cols, next_rows = load_logits(beta, pid // HEADS, i_h, by_col, by_row, HEADS)
    for tile in range(pid, tiles, step):
        i_t = tile // HEADS
        next_places += (step // HEADS) * (16 * HEADS * WIDTH)
        next_exists = (next_places >= 0) & (tile + step < tiles)
        strengths = strength_of(next_cols)
        strength = strength_of(next_rows)
        i_n = gl.minimum(tile + step, tiles - 1) // HEADS
        next_cols, next_rows = load_logits(beta, i_n, i_h, by_col, by_row, HEADS)
        M, P, same, q_norm, k_norm = pairs_of_tile(
            b_g, b_k, b_q, b_bias, decay, k, q, next_places, next_exists, rate, bound, sums, ii, jj, ROWS, BOUNDED
        )
        A, P = weighted_pairs(M, P, same, q_norm, k_norm, strength, scale, bound, ii, jj, ROWS, BOUNDED)
        X, Y = inverse_and_transpose(A, ii, jj, ROWS)
        Z = product32(P, Y, small)
        weights = gl.convert_layout((Z * strengths[None, :]).to(gl.bfloat16), LEFT)
        places = stored + i_t * (16 * HEADS * WIDTH)
        store_answers(out, places, weights, b_v, v, next_places, next_exists)
        if SAVE:
            store_kept(packs, norms, tile, X, Y, P, q_norm, k_norm, strength, by_row, flat, ii, jj)
