"""Gradients within a tile: of its pairs as 16x16 matrices, then of 32 channels, transposed [32 channels, 16 tokens].

Decays are computed again, and meet where they met in `gluon_forward`: at the line of half the bound, or within 8 rows
and at borders between halves.
"""

from draftc.runtime.kda.gluon_tiles import (
    ACC,
    HALF_LOG2E,
    LANES,
    LEFT32,
    PACKED,
    RIGHT32,
    SAFE_EXPONENT,
    across_border,
    by_token,
    exp2_fast,
    gl,
    gluon,
    kept_tf32,
    log2_decay,
    mma_v2,
    nearest_tf32,
    product,
    rounded_pair,
    same_segment,
    toward_border,
    unpacked,
)
from draftc.runtime.kda.triton_kernels import LN2


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
    C, X, ZT, q_rows, k_rows, rows, q_cols, k_cols, cols, scale, bound, ii, jj,
    ROWS: gl.constexpr, BOUNDED: gl.constexpr,
):  # fmt: skip
    """The 16x16 algebra: diag R, q_i·dq_i and k_i·dk_i over squared norms, diagonal of dP, `weighted_gradients`."""
    small = gl.zeros([16, 16], gl.float32, layout=ACC)
    C_half = C.to(gl.bfloat16)
    ZT_half = ZT.to(gl.bfloat16)
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
    moved = (qq * to_q + kk * to_k).to(gl.bfloat16)
    return to_q, to_k, product(moved, toward_border(jj, ii, s).to(gl.bfloat16), to_fall)


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
