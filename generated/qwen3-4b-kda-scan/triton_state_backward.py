"""Backward of the walk of KDA's state over tiles of context rows, with the algebra of `triton_state_kernels`."""

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
from .triton_state_kernels import carried_decays, carried_keys, learned_values, tile_count, tile_lines


@triton.jit(do_not_specialize=["most"])
def walk_backward(
    v, beta, tiles, lengths, sinces, untils, totals, inverses, kept, dkept, dv, added, learned, joints, alongs, most,
    TILE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, COLS: tl.constexpr,
    HALF: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Turn some value channels of `dkept`, in place, into gradients by way of all later tiles as well; store dV.

    Also stored: the channels of U and dW `[R, d]`, and their shares of R `[R, R]` and of k_i·dk_i `[R]`.
    """
    i_w, i_v = tl.program_id(0) // (WIDTH // COLS), tl.program_id(0) % (WIDTH // COLS)
    i_d, i_h = i_w // HEADS, i_w % HEADS
    slot, cols = i_v * COLS + tl.arange(0, COLS), tl.arange(0, PADDED)
    within = cols[:, None] < WIDTH
    ii, jj = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    length = tl.load(lengths + i_d)
    place = (i_d * (most + 1) + length) * HEADS + i_h
    now = load_tile(dkept + state_places(place, cols, slot, WIDTH), within, PADDED == WIDTH)
    for back in range(tile_count(lengths, i_d)):
        i_t = i_d * most + length - 1 - back
        i_s = i_t * HEADS + i_h
        row, alive = tile_lines(tiles, i_t, TILE)
        place -= HEADS
        spots = state_places(place, cols, slot, WIDTH)
        before = load_tile(kept + spots, within, PADDED == WIDTH)
        since = carried_keys(sinces, i_s, WIDTH, PADDED, TILE, HALF)
        recalled, b_added, inverse, strength = learned_values(
            v, beta, before, since, inverses, row, alive, i_s, i_h, slot, TILE, HEADS, WIDTH, HALF, PRECISION
        )
        until = carried_keys(untils, i_s, WIDTH, PADDED, TILE, HALF)
        to_added = tl.dot(until, operand(now, HALF), input_precision=PRECISION)
        solved = tl.dot(tl.trans(inverse), operand(to_added, HALF), input_precision=PRECISION)
        b_learned = solved * strength[:, None]
        values = dv + (row * (HEADS * WIDTH) + i_h * WIDTH)[:, None] + slot[None, :]
        store_tile(values, b_learned, alive[:, None], False)
        own = i_s.to(tl.int64) * (TILE * WIDTH) + ii * WIDTH + slot[None, :]
        store_tile(added + own, operand(b_added, HALF), True, True)
        store_tile(learned + own, operand(b_learned, HALF), True, True)
        joint = tl.dot(operand(solved, HALF), tl.trans(operand(b_added, HALF)), input_precision=PRECISION)
        i_p = i_s.to(tl.int64) * (WIDTH // COLS) + i_v
        tl.store(joints + i_p * (TILE * TILE) + ii * TILE + jj, joint)
        along = tl.sum(to_added * b_added, 1) - tl.sum(b_learned * recalled, 1)
        tl.store(alongs + i_p * TILE + tl.arange(0, TILE), along)
        total = load_tile(totals + i_s.to(tl.int64) * WIDTH + cols, cols < WIDTH, PADDED == WIDTH)
        now = tl.dot(tl.trans(since), operand(-b_learned, HALF), now * total[:, None], input_precision=PRECISION)
        now += load_tile(dkept + spots, within, PADDED == WIDTH)
        store_tile(dkept + spots, now, within, PADDED == WIDTH)


@triton.jit
def through_state(
    before, after, added, learned, i_s, cols, ii,
    TILE: tl.constexpr, WIDTH: tl.constexpr, COLS: tl.constexpr, HALF: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of the key channels `cols` of K e^G and K e^(G_T - G) `[R, COLS]` and of e^G_T `[COLS]`.

    `before` and `after` point to S and D of the tile.
    """
    to_since = tl.zeros([TILE, COLS], tl.float32)
    to_until = tl.zeros([TILE, COLS], tl.float32)
    to_total = tl.zeros([COLS], tl.float32)
    for c in range(0, WIDTH, COLS):
        slot = c + tl.arange(0, COLS)
        spots = cols[:, None] * WIDTH + slot[None, :]
        own = i_s.to(tl.int64) * (TILE * WIDTH) + ii * WIDTH + slot[None, :]
        b_state, b_dafter = tl.load(before + spots), tl.load(after + spots)
        to_total += tl.sum(b_state * b_dafter, 1)
        b_learned = operand(tl.load(learned + own), HALF)
        to_since -= tl.dot(b_learned, tl.trans(operand(b_state, HALF)), input_precision=PRECISION)
        b_added = operand(tl.load(added + own), HALF)
        to_until = tl.dot(b_added, tl.trans(operand(b_dafter, HALF)), to_until, input_precision=PRECISION)
    return to_since, to_until, to_total


@triton.jit
def pairs_of_tile(joints, alongs, writes, norms, strength, i_s, ii, jj, TILE: tl.constexpr, PARTS: tl.constexpr):
    """Gradient of the pairs of raw keys, diag R, what dk loses along k, and the norms."""
    small = ii * TILE + jj
    joint = tl.zeros([TILE, TILE], tl.float32)
    along = tl.zeros([TILE], tl.float32)
    for s in range(PARTS):
        i_p = i_s.to(tl.int64) * PARTS + s
        joint += tl.load(joints + i_p * (TILE * TILE) + small)
        along += tl.load(alongs + i_p * TILE + tl.arange(0, TILE))
    norm = tl.load(norms + i_s * TILE + tl.arange(0, TILE))
    to_pairs = tl.where(ii > jj, joint * -strength[:, None], 0.0)
    share = to_pairs * tl.load(writes + i_s.to(tl.int64) * (TILE * TILE) + small)
    along = (along + tl.sum(share, 1) + tl.sum(tl.trans(share), 1)) * norm * norm
    return to_pairs * norm[:, None] * norm[None, :], tl.sum(tl.where(ii == jj, joint, 0.0), 1), along, norm


@triton.jit(do_not_specialize=["most"])
def tiles_backward(
    k, decay, beta, A_log, dt_bias, tiles, kept, dkept, added, learned, writes, joints, norms, alongs,
    dk, ddecay, dbeta, to_bias, to_rate, most, bound,
    TILE: tl.constexpr, LINE: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    PARTS: tl.constexpr, COLS: tl.constexpr,
    BOUNDED: tl.constexpr, HALF: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of some key channels of a tile, of its β, and its sums for the gate's parameters `[tiles, h, d]`."""
    i_s, i_k = tl.program_id(0) // (WIDTH // COLS), tl.program_id(0) % (WIDTH // COLS)
    i_t, i_h = i_s // HEADS, i_s % HEADS
    if tl.load(tiles + 2 * i_t + 1) == 0:
        return
    row, alive = tile_lines(tiles, i_t, TILE)
    ii, jj = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    cols = i_k * COLS + tl.arange(0, COLS)
    places, exists = (row * (HEADS * WIDTH) + i_h * WIDTH)[:, None] + cols[None, :], alive[:, None]
    half = half_bound(bound, BOUNDED)
    logits = row * HEADS + i_h
    strength = sigmoid_fast(load_tile(beta + logits, alive, False).to(tl.float32))
    to_pairs, on_diagonal, along, norm = pairs_of_tile(
        joints, alongs, writes, norms, strength, i_s, ii, jj, TILE, PARTS
    )
    store_tile(dbeta + logits, (1.0 - strength) * on_diagonal, alive & (i_k == 0), False)
    raw, fall, slope = gate_slice(decay, A_log, dt_bias, places, i_h, cols, exists, bound, WIDTH, BOUNDED, False)
    since, until, total = carried_decays(
        decay, A_log, dt_bias, places, i_h, cols, exists, bound, half, ii, jj, WIDTH, BOUNDED, HALF
    )
    b_k = load_tile(k + places, exists, False).to(tl.float32)
    before = ((i_t + i_t // most) * HEADS + i_h).to(tl.int64) * (WIDTH * WIDTH)
    to_since, to_until, to_total = through_state(
        kept + before, dkept + before + HEADS * WIDTH * WIDTH, added, learned, i_s, cols, ii,
        TILE, WIDTH, COLS, HALF, PRECISION,
    )  # fmt: skip
    to_since, to_until = to_since * since * norm[:, None], to_until * until * norm[:, None]
    nothing = tl.zeros_like(to_pairs)
    _, b_dk, to_fall = pair_gradients(
        tl.zeros_like(b_k), b_k, fall, half, nothing, to_pairs, ii, jj, LINE, TILE, BOUNDED, HALF, PRECISION
    )
    to_fall += sums(ii <= jj, b_k * to_since, True) + sums(ii > jj, b_k * to_until, True)
    to_fall += (to_total * total)[None, :]
    store_tile(dk + places, b_dk + to_since + to_until - along[:, None] * b_k, exists, False)
    to_raw = tl.where(exists, to_fall * slope, 0.0)
    store_tile(ddecay + places, to_raw, exists, False)
    mine = i_s.to(tl.int64) * WIDTH + cols
    tl.store(to_bias + mine, tl.sum(to_raw, 0))
    share = tl.sum(to_raw * raw, 0) if BOUNDED else tl.sum(to_fall * fall, 0) * LN2
    tl.store(to_rate + mine, share)
