"""Forward of KDA inside blocks: O of a tile, with the algebra and the parts of `triton_kernels`."""

from .triton_kernels import (
    NORM_EPS,
    decayed_pairs,
    exp2_fast,
    gate_slice,
    half_bound,
    load_tile,
    operand,
    sigmoid_fast,
    state_places,
    store_tile,
    sums,
    tl,
    triton,
    unit_inverse,
)


@triton.jit
def tile_places(i_t, blocks, T: tl.constexpr, SPAN: tl.constexpr, TILE: tl.constexpr):
    """Rows of tile `i_t`: the first as int64, each relative to it, and whether it is a row of some block at all."""
    rows = tl.arange(0, TILE)
    first = i_t.to(tl.int64) * (TILE // SPAN * T)
    exists = (rows % SPAN < T) & (i_t * (TILE // SPAN) + rows // SPAN < blocks)
    return first, rows // SPAN * T + rows % SPAN, exists


@triton.jit
def decayed_rows(
    q, k, decay, A_log, dt_bias, places, i_h, cols, exists, bound, half, ii, jj,
    WIDTH: tl.constexpr, BOUNDED: tl.constexpr, WHOLE: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Some channels of q e^G and k e^G, without norms, G from the start of a tile that holds one block; and e^G."""
    _, fall, _ = gate_slice(decay, A_log, dt_bias, places, i_h, cols, exists, bound, WIDTH, BOUNDED, WHOLE)
    fallen = exp2_fast(sums(ii >= jj, fall + half, not HALF))
    queries = load_tile(q + places, exists, WHOLE).to(tl.float32) * fallen
    keys = load_tile(k + places, exists, WHOLE).to(tl.float32) * fallen
    return operand(queries, HALF), operand(keys, HALF), fallen


@triton.jit
def recalled(
    q, k, decay, A_log, dt_bias, state, start, lines, i_s, i_h, slot, alive, bound, half, ii, jj,
    TILE: tl.constexpr, COLS: tl.constexpr, WIDTH: tl.constexpr,
    BOUNDED: tl.constexpr, WHOLE: tl.constexpr, HALF: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(Q e^G) S and (K e^G) S for the value channels `slot` of state `i_s`, without norms."""
    by_query = tl.zeros([TILE, COLS], tl.float32)
    by_key = tl.zeros([TILE, COLS], tl.float32)
    for c in range(0, WIDTH, COLS):
        cols = c + tl.arange(0, COLS)
        places = start + lines[:, None] + cols[None, :]
        queries, keys, _ = decayed_rows(
            q, k, decay, A_log, dt_bias, places, i_h, cols, alive[:, None], bound, half, ii, jj,
            WIDTH, BOUNDED, WHOLE, HALF,
        )  # fmt: skip
        before = operand(tl.load(state + state_places(i_s, cols, slot, WIDTH)), HALF)
        by_query = tl.dot(queries, before, by_query, input_precision=PRECISION)
        by_key = tl.dot(keys, before, by_key, input_precision=PRECISION)
    return by_query, by_key


@triton.jit
def blocks_forward(
    q, k, v, decay, beta, A_log, dt_bias, state, out, inverses, mixings, norms, blocks, scale, bound,
    T: tl.constexpr, SPAN: tl.constexpr, TILE: tl.constexpr, LINE: tl.constexpr,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, COLS: tl.constexpr,
    BOUNDED: tl.constexpr, WHOLE: tl.constexpr, FROM_STATE: tl.constexpr, SAVE: tl.constexpr,
    HALF: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """O of one tile of one head; where SAVE, also X, Z `[tiles, h, R, R]` and both norms `[tiles, h, 2, R]`."""
    i_t, i_h = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    first, rows, alive = tile_places(i_t, blocks, T, SPAN, TILE)
    ii, jj = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    start, lines, exists = first * (HEADS * WIDTH) + i_h * WIDTH, rows * (HEADS * WIDTH), alive[:, None]
    strength = sigmoid_fast(load_tile(beta + first * HEADS + rows * HEADS + i_h, alive, WHOLE).to(tl.float32))
    half = half_bound(bound, BOUNDED)
    writes = tl.zeros([TILE, TILE], tl.float32)
    reads = tl.zeros([TILE, TILE], tl.float32)
    q_square = tl.zeros([TILE], tl.float32)
    k_square = tl.zeros([TILE], tl.float32)
    for c in range(0, WIDTH, COLS):
        cols = c + tl.arange(0, COLS)
        places = start + lines[:, None] + cols[None, :]
        _, fall, _ = gate_slice(decay, A_log, dt_bias, places, i_h, cols, exists, bound, WIDTH, BOUNDED, WHOLE)
        b_k = load_tile(k + places, exists, WHOLE).to(tl.float32)
        b_q = load_tile(q + places, exists, WHOLE).to(tl.float32)
        q_square += tl.sum(b_q * b_q, 1)
        k_square += tl.sum(b_k * b_k, 1)
        more_writes, more_reads = decayed_pairs(b_q, b_k, fall, half, ii, jj, LINE, SPAN, BOUNDED, HALF, PRECISION)
        writes += more_writes
        reads += more_reads
    q_norm, k_norm = tl.rsqrt(q_square + NORM_EPS), tl.rsqrt(k_square + NORM_EPS)
    writes = writes * (k_norm * strength)[:, None] * k_norm[None, :]
    reads = reads * (q_norm * scale)[:, None] * k_norm[None, :]
    inverse = unit_inverse(writes, ii, jj, SPAN, PRECISION)
    mixing = tl.dot(reads, inverse, input_precision=PRECISION)
    weights = operand(mixing * strength[None, :], HALF)
    for c in range(0, WIDTH, COLS):
        slot = c + tl.arange(0, COLS)
        places = start + lines[:, None] + slot[None, :]
        wanted = load_tile(v + places, exists, WHOLE)
        if FROM_STATE:
            by_query, by_key = recalled(
                q, k, decay, A_log, dt_bias, state, start, lines, i_t * HEADS + i_h, i_h, slot, alive, bound, half,
                ii, jj, TILE, COLS, WIDTH, BOUNDED, WHOLE, HALF, PRECISION,
            )  # fmt: skip
            wanted = operand(wanted.to(tl.float32) - by_key * k_norm[:, None], HALF)
            answer = tl.dot(weights, wanted, by_query * (q_norm * scale)[:, None], input_precision=PRECISION)
        else:
            answer = tl.dot(weights, operand(wanted, HALF), input_precision=PRECISION)
        store_tile(out + places, answer, exists, WHOLE)
    if SAVE:
        small = (i_t * HEADS + i_h).to(tl.int64) * (TILE * TILE) + ii * TILE + jj
        tl.store(inverses + small, operand(inverse, HALF).to(inverses.dtype.element_ty))
        tl.store(mixings + small, operand(mixing, HALF).to(mixings.dtype.element_ty))
        row = (i_t * HEADS + i_h) * (2 * TILE) + tl.arange(0, TILE)
        tl.store(norms + row, q_norm)
        tl.store(norms + row + TILE, k_norm)
