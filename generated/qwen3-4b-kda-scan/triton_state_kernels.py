"""How tiles of 16 context rows change the state of KDA, as Triton kernels, forward and backward.

With G the running sum of log decays of a tile, unit rows k, strengths β and X = (I + diag(β) M)^-1 as in
`triton_kernels`:

    W = V - (K e^G) S        U = X diag(β) W        S' = diag(e^G_T) S + (K e^(G_T - G))ᵀ U

Backward, with D the gradient of S':

    dU = K e^(G_T - G) D     Y = Xᵀ dU     dW = dV = diag(β) Y     R = Y Uᵀ     dM_ij = -β_i R_ij, i > j
    d(logit β) = (1 - β) diag R            dS = diag(e^G_T) D - (K e^G)ᵀ dW
    k_i·dk_i = dU_i·U_i - dW_i·((K e^G) S)_i + Σ_j (dM∘M)_ij + Σ_j (dM∘M)_ji      (what the norm takes away again)

X, the scaled keys and the gradients of keys and gates need no other tile: `context_tiles` and `tiles_backward` work on
all tiles at once. Between them `walk_forward` and `walk_backward` carry some value channels of S and D from tile to
tile, which do not depend on the other channels. Exponents are sums over the rows between two places, at most 0. A tile
is a first row and a count: rows past the count have key 0 and no decay, and change nothing.
"""

from .triton_kernels import (
    INTERPRETED,
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
def tile_lines(tiles, i_t, TILE: tl.constexpr):
    """Numbers of the rows of tile `i_t` as int64, and which it has."""
    lines = tl.arange(0, TILE)
    return tl.load(tiles + 2 * i_t) + lines, lines < tl.load(tiles + 2 * i_t + 1)


@triton.jit
def tile_count(lengths, i_d):
    """How many tiles walk `i_d` has; a number of Python where kernels are interpreted, which loop over no other."""
    count = tl.load(lengths + i_d)
    if INTERPRETED:
        return count.handle.data.item()
    else:
        return count


@triton.jit
def carried_decays(
    decay, A_log, dt_bias, places, i_h, cols, exists, bound, half, ii, jj,
    WIDTH: tl.constexpr, BOUNDED: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Some channels of e^G and e^(G_T - G) `[R, COLS]`, and of e^G_T `[COLS]`."""
    _, fall, _ = gate_slice(decay, A_log, dt_bias, places, i_h, cols, exists, bound, WIDTH, BOUNDED, False)
    fall = tl.where(exists, fall + half, 0.0)
    since, until = sums(ii >= jj, fall, not HALF), sums(ii < jj, fall, not HALF)
    return exp2_fast(since), exp2_fast(until), tl.exp2(tl.sum(fall, 0))


@triton.jit
def written_pairs(
    k, decay, A_log, dt_bias, lines, i_h, exists, bound, half, ii, jj,
    TILE: tl.constexpr, LINE: tl.constexpr, WIDTH: tl.constexpr, COLS: tl.constexpr,
    BOUNDED: tl.constexpr, HALF: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """M `[R, R]` of one tile and one head, and what its keys are scaled by."""
    writes = tl.zeros([TILE, TILE], tl.float32)
    square = tl.zeros([TILE], tl.float32)
    for c in range(0, WIDTH, COLS):
        cols = c + tl.arange(0, COLS)
        places = lines + cols[None, :]
        _, fall, _ = gate_slice(decay, A_log, dt_bias, places, i_h, cols, exists, bound, WIDTH, BOUNDED, False)
        b_k = load_tile(k + places, exists, False).to(tl.float32)
        square += tl.sum(b_k * b_k, 1)
        more, _ = decayed_pairs(b_k, b_k, fall, half, ii, jj, LINE, TILE, BOUNDED, HALF, PRECISION)
        writes += more
    norm = tl.rsqrt(square + NORM_EPS)
    return writes * norm[:, None] * norm[None, :], norm


@triton.jit
def context_tiles(
    k, decay, beta, A_log, dt_bias, tiles, sinces, untils, totals, inverses, writes, norms, bound,
    TILE: tl.constexpr, LINE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, COLS: tl.constexpr,
    BOUNDED: tl.constexpr, HALF: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """K e^G, K e^(G_T - G) `[R, d]`, e^G_T `[d]`, X, M `[R, R]`, norms `[R]` of a tile of one head, if it has rows."""
    i_s = tl.program_id(0)
    i_h = i_s % HEADS
    if tl.load(tiles + i_s // HEADS * 2 + 1) == 0:
        return
    row, alive = tile_lines(tiles, i_s // HEADS, TILE)
    ii, jj = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    lines, exists = (row * (HEADS * WIDTH) + i_h * WIDTH)[:, None], alive[:, None]
    half = half_bound(bound, BOUNDED)
    strength = sigmoid_fast(load_tile(beta + row * HEADS + i_h, alive, False).to(tl.float32))
    pairs, norm = written_pairs(
        k, decay, A_log, dt_bias, lines, i_h, exists, bound, half, ii, jj,
        TILE, LINE, WIDTH, COLS, BOUNDED, HALF, PRECISION,
    )  # fmt: skip
    small = i_s.to(tl.int64) * (TILE * TILE) + ii * TILE + jj
    store_tile(
        inverses + small, operand(unit_inverse(pairs * strength[:, None], ii, jj, TILE, PRECISION), HALF), True, True
    )
    tl.store(writes + small, pairs)
    tl.store(norms + i_s * TILE + tl.arange(0, TILE), norm)
    for c in range(0, WIDTH, COLS):
        cols = c + tl.arange(0, COLS)
        places = lines + cols[None, :]
        since, until, total = carried_decays(
            decay, A_log, dt_bias, places, i_h, cols, exists, bound, half, ii, jj, WIDTH, BOUNDED, HALF
        )
        unit = load_tile(k + places, exists, False).to(tl.float32) * norm[:, None]
        own = i_s.to(tl.int64) * (TILE * WIDTH) + ii * WIDTH + cols[None, :]
        store_tile(sinces + own, operand(unit * since, HALF), True, True)
        store_tile(untils + own, operand(unit * until, HALF), True, True)
        tl.store(totals + i_s.to(tl.int64) * WIDTH + cols, total)


@triton.jit
def carried_keys(keys, i_s, WIDTH: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr, HALF: tl.constexpr):
    """Scaled keys of one tile of one head, `[R, PADDED]`."""
    rows, cols = tl.arange(0, TILE)[:, None], tl.arange(0, PADDED)[None, :]
    places = keys + i_s.to(tl.int64) * (TILE * WIDTH) + rows * WIDTH + cols
    return operand(load_tile(places, cols < WIDTH, PADDED == WIDTH), HALF)


@triton.jit
def learned_values(
    v, beta, before, since, inverses, row, alive, i_s, i_h, slot,
    TILE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Some value channels of (K e^G) S and U `[R, COLS]`, and X and β."""
    ii, jj = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    inverse = operand(tl.load(inverses + i_s.to(tl.int64) * (TILE * TILE) + ii * TILE + jj), HALF)
    strength = sigmoid_fast(load_tile(beta + row * HEADS + i_h, alive, False).to(tl.float32))
    wanted = load_tile(v + (row * (HEADS * WIDTH) + i_h * WIDTH)[:, None] + slot[None, :], alive[:, None], False)
    recalled = tl.dot(since, operand(before, HALF), input_precision=PRECISION)
    missing = operand((wanted.to(tl.float32) - recalled) * strength[:, None], HALF)
    return recalled, tl.dot(inverse, missing, input_precision=PRECISION), inverse, strength


@triton.jit(do_not_specialize=["most"])
def walk_forward(
    v, beta, tiles, lengths, sinces, untils, totals, inverses, state, kept, most,
    TILE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, COLS: tl.constexpr,
    HALF: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Some value channels of one head of the states before every tile of a walk and after the last."""
    i_w, i_v = tl.program_id(0) // (WIDTH // COLS), tl.program_id(0) % (WIDTH // COLS)
    i_d, i_h = i_w // HEADS, i_w % HEADS
    slot, cols = i_v * COLS + tl.arange(0, COLS), tl.arange(0, PADDED)
    within = cols[:, None] < WIDTH
    now = load_tile(state + state_places(i_w, cols, slot, WIDTH), within, PADDED == WIDTH)
    place = i_d * (most + 1) * HEADS + i_h
    store_tile(kept + state_places(place, cols, slot, WIDTH), now, within, PADDED == WIDTH)
    for t in range(tile_count(lengths, i_d)):
        i_s = (i_d * most + t) * HEADS + i_h
        row, alive = tile_lines(tiles, i_d * most + t, TILE)
        since = carried_keys(sinces, i_s, WIDTH, PADDED, TILE, HALF)
        _, added, _, _ = learned_values(
            v, beta, now, since, inverses, row, alive, i_s, i_h, slot, TILE, HEADS, WIDTH, HALF, PRECISION
        )
        until = tl.trans(carried_keys(untils, i_s, WIDTH, PADDED, TILE, HALF))
        total = load_tile(totals + i_s.to(tl.int64) * WIDTH + cols, cols < WIDTH, PADDED == WIDTH)
        now = tl.dot(until, operand(added, HALF), now * total[:, None], input_precision=PRECISION)
        place += HEADS
        store_tile(kept + state_places(place, cols, slot, WIDTH), now, within, PADDED == WIDTH)
