"""Backward of KDA inside blocks: all gradients of a tile, with the algebra and the parts of `triton_kernels`."""

from .triton_forward import decayed_rows, recalled, tile_places
from .triton_kernels import (
    LN2,
    gate_slice,
    half_bound,
    load_tile,
    operand,
    pair_gradients,
    sigmoid_fast,
    state_places,
    store_tile,
    sums,
    tl,
    triton,
)


@triton.jit
def state_gradients(
    queries, keys, fallen, back, state, dout, dstate, start, lines, i_s, cols, exists, q_scale, k_norm,
    COLS: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr, HALF: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of some channels of q and k by way of the state, and those of its rows `cols`, which are stored.

    `queries` and `keys` are q e^G and k e^G without norms, `back` turns dO into dV.
    """
    to_q = tl.zeros(fallen.shape, tl.float32)
    to_k = tl.zeros(fallen.shape, tl.float32)
    for c in range(0, WIDTH, COLS):
        slot = c + tl.arange(0, COLS)
        spots = state_places(i_s, cols, slot, WIDTH)
        before = tl.trans(operand(tl.load(state + spots), HALF))
        b_do = load_tile(dout + start + lines[:, None] + slot[None, :], exists, WHOLE)
        b_dv = tl.dot(back, operand(b_do, HALF), input_precision=PRECISION)
        to_q = tl.dot(operand(b_do, HALF), before, to_q, input_precision=PRECISION)
        to_k = tl.dot(operand(b_dv, HALF), before, to_k, input_precision=PRECISION)
        answered = operand(b_do.to(tl.float32) * q_scale[:, None], HALF)
        learned = operand(b_dv * -k_norm[:, None], HALF)
        to_state = tl.dot(tl.trans(queries), answered, input_precision=PRECISION)
        to_state = tl.dot(tl.trans(keys), learned, to_state, input_precision=PRECISION)
        tl.store(dstate + spots, to_state)
    return to_q * fallen * q_scale[:, None], to_k * fallen * -k_norm[:, None]


@triton.jit
def values_backward(
    q, k, v, decay, A_log, dt_bias, state, dout, dv, back, start, lines, i_s, i_h, alive, bound, half, q_scale, k_norm,
    ii, jj, TILE: tl.constexpr, COLS: tl.constexpr, WIDTH: tl.constexpr, BOUNDED: tl.constexpr, WHOLE: tl.constexpr,
    FROM_STATE: tl.constexpr, HALF: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Store dV; return dO V'ᵀ and what q_i·dq_i and k_i·dk_i get by way of the state, over the squares of the norms."""
    exists = alive[:, None]
    to_weights = tl.zeros([TILE, TILE], tl.float32)
    along_q = tl.zeros([TILE], tl.float32)
    along_k = tl.zeros([TILE], tl.float32)
    for c in range(0, WIDTH, COLS):
        slot = c + tl.arange(0, COLS)
        places = start + lines[:, None] + slot[None, :]
        b_do = load_tile(dout + places, exists, WHOLE)
        wanted = load_tile(v + places, exists, WHOLE)
        b_dv = tl.dot(back, operand(b_do, HALF), input_precision=PRECISION)
        store_tile(dv + places, b_dv, exists, WHOLE)
        if FROM_STATE:
            by_query, by_key = recalled(
                q, k, decay, A_log, dt_bias, state, start, lines, i_s, i_h, slot, alive, bound, half,
                ii, jj, TILE, COLS, WIDTH, BOUNDED, WHOLE, HALF, PRECISION,
            )  # fmt: skip
            by_key *= k_norm[:, None]
            along_q += tl.sum(b_do.to(tl.float32) * by_query, 1) * q_scale
            along_k -= tl.sum(b_dv * by_key, 1)
            wanted = wanted.to(tl.float32) - by_key
        to_weights = tl.dot(operand(b_do, HALF), tl.trans(operand(wanted, HALF)), to_weights, input_precision=PRECISION)
    return to_weights, along_q, along_k


@triton.jit
def pairs_backward(to_weights, inverse, mixing, ii, jj, HALF: tl.constexpr, PRECISION: tl.constexpr):
    """dP, R, its diagonal and the sums of Z∘C over columns and over rows, from C = `to_weights`."""
    to_reads = tl.dot(operand(to_weights, HALF), tl.trans(inverse), input_precision=PRECISION)
    joint = tl.dot(tl.trans(mixing), operand(to_reads, HALF), input_precision=PRECISION)
    on_diagonal = tl.sum(tl.where(ii == jj, joint, 0.0), 1)
    share = mixing.to(tl.float32) * to_weights
    return to_reads, joint, on_diagonal, tl.sum(share, 1), tl.sum(tl.trans(share), 1)


@triton.jit
def channels_backward(
    cols, q, k, decay, A_log, dt_bias, state, dout, dq, dk, ddecay, dstate, to_bias, to_rate, back, start, lines,
    i_s, i_h, exists, bound, half, q_scale, k_norm, along_q, along_k, from_reads, from_writes, ii, jj,
    LINE: tl.constexpr, SPAN: tl.constexpr, COLS: tl.constexpr, WIDTH: tl.constexpr,
    BOUNDED: tl.constexpr, WHOLE: tl.constexpr, FROM_STATE: tl.constexpr, HALF: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Store dq, dk, d(raw gate) of the key channels `cols`, their rows of dS, and the sums for the gate's parameters.

    `from_*` are the gradients of the pairs, `along_*` what the unit norms take away; all norms are included.
    """
    places = start + lines[:, None] + cols[None, :]
    raw, fall, slope = gate_slice(decay, A_log, dt_bias, places, i_h, cols, exists, bound, WIDTH, BOUNDED, WHOLE)
    b_k = load_tile(k + places, exists, WHOLE).to(tl.float32)
    b_q = load_tile(q + places, exists, WHOLE).to(tl.float32)
    b_dq, b_dk, to_fall = pair_gradients(
        b_q, b_k, fall, half, from_reads, from_writes, ii, jj, LINE, SPAN, BOUNDED, HALF, PRECISION
    )
    if FROM_STATE:
        queries, keys, fallen = decayed_rows(
            q, k, decay, A_log, dt_bias, places, i_h, cols, exists, bound, half, ii, jj,
            WIDTH, BOUNDED, WHOLE, HALF,
        )  # fmt: skip
        to_q, to_k = state_gradients(
            queries, keys, fallen, back, state, dout, dstate, start, lines, i_s, cols, exists,
            q_scale, k_norm, COLS, WIDTH, WHOLE, HALF, PRECISION,
        )  # fmt: skip
        b_dq, b_dk = b_dq + to_q, b_dk + to_k
        to_fall += sums(ii <= jj, b_q * to_q + b_k * to_k, True)
    store_tile(dq + places, b_dq - along_q[:, None] * b_q, exists, WHOLE)
    store_tile(dk + places, b_dk - along_k[:, None] * b_k, exists, WHOLE)
    to_raw = tl.where(exists, to_fall * slope, 0.0)
    store_tile(ddecay + places, to_raw, exists, WHOLE)
    mine = i_s.to(tl.int64) * WIDTH + cols
    tl.store(to_bias + mine, tl.sum(to_raw, 0))
    if BOUNDED:
        tl.store(to_rate + mine, tl.sum(to_raw * raw, 0))
    else:
        tl.store(to_rate + mine, tl.sum(to_fall * fall, 0) * LN2)


@triton.jit
def blocks_backward(
    q, k, v, decay, beta, A_log, dt_bias, state, inverses, mixings, norms, dout,
    dq, dk, dv, ddecay, dbeta, dstate, to_bias, to_rate, blocks, scale, bound,
    T: tl.constexpr, SPAN: tl.constexpr, TILE: tl.constexpr, LINE: tl.constexpr,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, COLS: tl.constexpr,
    BOUNDED: tl.constexpr, WHOLE: tl.constexpr, FROM_STATE: tl.constexpr, HALF: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """All gradients of one tile of one head; those of the gate's parameters summed over it, `[tiles, h, d]` each.

    First the small matrices, over the value channels; then the key channels, which do not depend on each other.
    """
    i_t, i_h = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    i_s = i_t * HEADS + i_h
    first, rows, alive = tile_places(i_t, blocks, T, SPAN, TILE)
    ii, jj = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    start, lines, exists = first * (HEADS * WIDTH) + i_h * WIDTH, rows * (HEADS * WIDTH), alive[:, None]
    half = half_bound(bound, BOUNDED)
    logits = first * HEADS + rows * HEADS + i_h
    strength = sigmoid_fast(load_tile(beta + logits, alive, WHOLE).to(tl.float32))
    small = i_s.to(tl.int64) * (TILE * TILE) + ii * TILE + jj
    mixing = operand(tl.load(mixings + small), HALF)
    row = i_s * (2 * TILE) + tl.arange(0, TILE)
    q_norm, k_norm = tl.load(norms + row), tl.load(norms + row + TILE)
    back = tl.trans(operand(mixing.to(tl.float32) * strength[None, :], HALF))
    to_weights, along_q, along_k = values_backward(
        q, k, v, decay, A_log, dt_bias, state, dout, dv, back, start, lines, i_s, i_h, alive, bound, half,
        q_norm * scale, k_norm, ii, jj, TILE, COLS, WIDTH, BOUNDED, WHOLE, FROM_STATE, HALF, PRECISION,
    )  # fmt: skip
    to_weights *= strength[None, :]
    inverse = operand(tl.load(inverses + small), HALF)
    to_reads, joint, on_diagonal, over_q, over_k = pairs_backward(to_weights, inverse, mixing, ii, jj, HALF, PRECISION)
    store_tile(dbeta + logits, (1.0 - strength) * on_diagonal, alive, WHOLE)
    along_q = (along_q + over_q) * q_norm * q_norm
    along_k = (along_k + 2.0 * on_diagonal - over_k) * k_norm * k_norm
    from_reads = to_reads * (scale * q_norm)[:, None] * k_norm[None, :]
    from_writes = joint * (-strength * k_norm)[:, None] * k_norm[None, :]
    for c in range(0, WIDTH, COLS):
        channels_backward(
            c + tl.arange(0, COLS), q, k, decay, A_log, dt_bias, state, dout, dq, dk, ddecay, dstate, to_bias, to_rate,
            back, start, lines, i_s, i_h, exists, bound, half, q_norm * scale, k_norm, along_q, along_k,
            from_reads, from_writes, ii, jj, LINE, SPAN, COLS, WIDTH, BOUNDED, WHOLE, FROM_STATE, HALF, PRECISION,
        )  # fmt: skip
