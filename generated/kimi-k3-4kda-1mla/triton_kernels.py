"""KDA inside blocks as Triton kernels: one program, one tile of rows of one head, every matrix in registers.

A tile holds one block, padded to a power of two of at least 16 rows, or several shorter blocks. With G the running sum
of log decays within a block, unit rows q and k, and β the strengths:

    M_ij = k_i·k_j e^(G_i - G_j), i > j      P_ij = q_i·k_j e^(G_i - G_j) d^-½, i >= j
    X = (I + diag(β) M)^-1                   Z = P X
    O = Z diag(β) (V - (K e^G) S) + (Q e^G) S, S the state before the block

X doubles exactly, X_2s = X_s - X_s A_s X_s with A_s the part of diag(β) M that joins halves of s rows: no power of the
matrix appears, so correlated keys cost no digits. Norms scale M and P, never q or k.

Backward, with V' = V - (K e^G) S and C = dO V'ᵀ diag(β), needs X, Z and the norms only:

    dP = C Xᵀ        R = Zᵀ dP        dM_ij = -β_i R_ij        d(logit β) = (1 - β) diag R        dV = diag(β) Zᵀ dO
    q_i·dq_i = Σ_j (Z∘C)_ij           k_j·dk_j = 2 R_jj - Σ_i (Z∘C)_ij        (what the norms take away again)

Decays without overflow. With a bound λ, rows within a line of 16 are measured from the line λt/2: G' = Σ (g - λ/2)
stays within 8λ, so e^G' and e^-G' exist and e^(λ/2 (i - j)) goes onto the small matrices. Without a bound, and between
lines, rows of the two halves of a segment meet at the border between them, with exponents at most 0.
Gradients of a decay sum +t at row i and -t at row j of every pair. Both sides use the operands as the products rounded
them, and their running sum keeps 22 bits, so that the two cancel to float32 rounding.
"""

import os

try:
    import triton
    import triton.language as tl
except ImportError as missing:
    raise ImportError(f"the kernels of kda_triton need Triton: {missing}") from missing

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET", "0") == "1")
LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
NORM_EPS = tl.constexpr(1e-6)
LINEAR_ABOVE = tl.constexpr(20.0)  # softplus(r) is r to float32 from here on
LEVELS = tl.constexpr(5)  # of halves of 1, 2, 4, 8, 16 rows


@triton.jit
def exp2_fast(x):
    """2^x by the special-function unit alone; results below 2^-126 become 0."""
    if INTERPRETED:
        return tl.exp2(x)
    else:
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def reciprocal_fast(x):
    """1/x to one unit in the last place."""
    if INTERPRETED:
        return 1.0 / x
    else:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def log2_fast(x):
    """Binary logarithm of a normal number."""
    if INTERPRETED:
        return tl.log2(x)
    else:
        return tl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def sigmoid_fast(x):
    """1 / (1 + e^-x)."""
    return reciprocal_fast(1.0 + exp2_fast(x * -LOG2E))


@triton.jit
def operand(x, HALF: tl.constexpr):
    """`x` as the matrix unit takes it: bfloat16 where HALF, else float32. Two values are rounded at once.

    A cast written as such would be undone by scalar conversions where the rounded value is widened again.
    """
    if not HALF:
        return x.to(tl.float32)
    elif INTERPRETED:  # its products know no bfloat16, and its casts truncate
        bits = x.to(tl.float32).to(tl.int32, bitcast=True)
        return ((bits + 32767 + ((bits >> 16) & 1)) & -65536).to(tl.float32, bitcast=True)
    elif x.dtype == tl.bfloat16:
        return x
    else:
        asm: tl.constexpr = "cvt.rn.bf16x2.f32 $0, $2, $1;"
        return tl.inline_asm_elementwise(asm, "=r,f,f", [x.to(tl.float32)], tl.bfloat16, is_pure=True, pack=2)


@triton.jit
def product(a, b, HALF: tl.constexpr, PRECISION: tl.constexpr):
    """Product of operands that `operand` has rounded or may still round; float32 at PRECISION unless HALF."""
    return tl.dot(operand(a, HALF), operand(b, HALF), input_precision=PRECISION)


@triton.jit
def sums(chosen, x, FINE: tl.constexpr):
    """For every row the sum of the `chosen [R, R]` rows of `x [R, d]`; x keeps 22 bits where FINE, else 16."""
    ones = tl.where(chosen, 1.0, 0.0)
    if INTERPRETED:
        return tl.dot(ones, x, input_precision="ieee")
    elif FINE:
        high = (x.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
        rest = tl.dot(ones, x - high, input_precision="tf32")
        return tl.dot(ones, high, rest, input_precision="tf32")
    else:
        high = (x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)
        rest = tl.dot(ones.to(tl.bfloat16), (x - high).to(tl.bfloat16))
        return tl.dot(ones.to(tl.bfloat16), high.to(tl.bfloat16), rest)


@triton.jit
def toward_border(ii, jj, s: tl.constexpr):
    """Which rows lie between row i and the border of its half: up to i in an upper half, after i in a lower one."""
    half = (ii // s) % 2
    return (ii // s == jj // s) & (((half == 1) & (jj <= ii)) | ((half == 0) & (jj > ii)))


@triton.jit
def across_border(ii, jj, s: tl.constexpr):
    """Pairs that meet at a border between halves of s rows: i above, j below."""
    return (ii // (2 * s) == jj // (2 * s)) & ((ii // s) % 2 == 1) & ((jj // s) % 2 == 0)


@triton.jit
def tile_places(i_t, blocks, T: tl.constexpr, SPAN: tl.constexpr, TILE: tl.constexpr):
    """Rows of tile `i_t`: the first as int64, each relative to it, and whether it is a row of some block at all."""
    rows = tl.arange(0, TILE)
    first = i_t.to(tl.int64) * (TILE // SPAN * T)
    exists = (rows % SPAN < T) & (i_t * (TILE // SPAN) + rows // SPAN < blocks)
    return first, rows // SPAN * T + rows % SPAN, exists


@triton.jit
def load_tile(pointers, exists, WHOLE: tl.constexpr):
    """What `pointers` point to, zero where nothing exists; WHOLE promises that all of it does."""
    if WHOLE:
        return tl.load(pointers)
    else:
        return tl.load(pointers, mask=exists, other=0.0)


@triton.jit
def store_tile(pointers, x, exists, WHOLE: tl.constexpr):
    """Store `x` in the dtype of `pointers` where something exists."""
    if WHOLE:
        tl.store(pointers, x.to(pointers.dtype.element_ty))
    else:
        tl.store(pointers, x.to(pointers.dtype.element_ty), mask=exists)


@triton.jit
def gate_slice(
    decay,
    A_log,
    dt_bias,
    places,
    i_h,
    cols,
    exists,
    bound,
    WIDTH: tl.constexpr,
    BOUNDED: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Raw gate with its bias, log decays and slope of some channels; parameters rounded as every backend does."""
    dtype: tl.constexpr = decay.dtype.element_ty
    rate = tl.exp2(tl.load(A_log + i_h).to(dtype).to(tl.float32) * LOG2E)
    bias = tl.load(dt_bias + i_h * WIDTH + cols).to(dtype).to(tl.float32)
    raw = load_tile(decay + places, exists, WHOLE).to(tl.float32) + bias[None, :]
    fall, slope = log2_decay(raw, rate, bound, BOUNDED)
    return raw, tl.where(exists, fall, 0.0), slope


@triton.jit
def log2_decay(raw, rate, bound, BOUNDED: tl.constexpr):
    """Binary logarithm of the decay, less half the bound where there is one, and d(log decay)/d(raw)."""
    if BOUNDED:
        open_share = sigmoid_fast(raw * rate)
        return (bound * LOG2E) * (open_share - 0.5), (bound * rate) * open_share * (1.0 - open_share)
    else:
        grown = 1.0 + exp2_fast(raw * LOG2E)
        softplus = tl.where(raw > LINEAR_ABOVE, raw * LOG2E, log2_fast(grown))
        return -rate * softplus, rate * reciprocal_fast(grown) - rate


@triton.jit
def half_bound(bound, BOUNDED: tl.constexpr):
    """What `log2_decay` left out of every row."""
    if BOUNDED:
        return bound * (0.5 * LOG2E)
    else:
        return 0.0


@triton.jit
def line_falloff(half, ii, jj, LINE: tl.constexpr):
    """2^(half (i - j)) for rows of one line, i >= j, else 0."""
    steps = tl.where(ii > jj, ii - jj, 0).to(tl.float32)
    return tl.where((ii // LINE == jj // LINE) & (ii >= jj), tl.exp2(half * steps), 0.0)


@triton.jit
def decayed_pairs(
    q, k, fall, half, ii, jj,
    LINE: tl.constexpr, SPAN: tl.constexpr, BOUNDED: tl.constexpr, HALF: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Pairs k_i·k_j (i > j) and q_i·k_j (i >= j), each times e^(G_i - G_j), of rows `[R, d]` that have no norm yet."""
    same = tl.sum(q * k, 1)
    reads = tl.where(ii == jj, same[:, None], 0.0)
    writes = tl.zeros_like(reads)
    if BOUNDED:
        run = sums((ii // LINE == jj // LINE) & (ii >= jj), fall, not HALF)
        later = exp2_fast(run)
        earlier = tl.trans(operand(k * exp2_fast(-run), HALF))
        weight = tl.where(ii > jj, line_falloff(half, ii, jj, LINE), 0.0)
        writes += product(k * later, earlier, HALF, PRECISION) * weight
        reads += product(q * later, earlier, HALF, PRECISION) * weight
    for level in tl.static_range(LEVELS):
        if (1 << level) >= LINE and (1 << level) < SPAN:
            near = exp2_fast(sums(toward_border(ii, jj, 1 << level), fall + half, not HALF))
            meet = across_border(ii, jj, 1 << level)
            keys = operand(k * near, HALF)
            writes += tl.where(meet, product(keys, tl.trans(keys), HALF, PRECISION), 0.0)
            reads += tl.where(meet, product(q * near, tl.trans(keys), HALF, PRECISION), 0.0)
    return writes, reads


@triton.jit
def unit_inverse(lower, ii, jj, SPAN: tl.constexpr, PRECISION: tl.constexpr):
    """(I + lower)^-1 of a strictly lower triangular matrix, doubled from segments of one row to SPAN."""
    inverse = tl.where(ii == jj, 1.0, 0.0) - tl.where(across_border(ii, jj, 1), lower, 0.0)
    for level in tl.static_range(1, LEVELS):
        if (1 << level) < SPAN:
            joint = tl.where(across_border(ii, jj, 1 << level), lower, 0.0)
            joint = tl.dot(joint, inverse, input_precision=PRECISION)
            inverse -= tl.dot(inverse, joint, input_precision=PRECISION)
    return inverse


@triton.jit
def line_gradients(
    q, k, fall, half, from_reads, from_writes, ii, jj, LINE: tl.constexpr, HALF: tl.constexpr, PRECISION: tl.constexpr
):
    """Gradients of q, k and the log decays from pairs within lines; `from_*` are those of the pairs, norms included."""
    line = ii // LINE == jj // LINE
    run = sums(line & (ii >= jj), fall, not HALF)
    later, earlier = exp2_fast(run), exp2_fast(-run)
    weight = tl.where(ii > jj, line_falloff(half, ii, jj, LINE), 0.0)
    reads, writes = operand(from_reads * weight, HALF), operand(from_writes * weight, HALF)
    k_low, k_up, q_up = operand(k * earlier, HALF), operand(k * later, HALF), operand(q * later, HALF)
    to_q = tl.dot(reads, k_low, input_precision=PRECISION)
    to_k = tl.dot(writes, k_low, input_precision=PRECISION)
    back = tl.dot(tl.trans(writes), k_up, input_precision=PRECISION)
    back = tl.dot(tl.trans(reads), q_up, back, input_precision=PRECISION)
    moved = q_up.to(tl.float32) * to_q + k_up.to(tl.float32) * to_k - k_low.to(tl.float32) * back
    return later * to_q, later * to_k + earlier * back, sums(line & (ii <= jj), moved, True)


@triton.jit
def border_gradients(
    q, k, fall, from_reads, from_writes, ii, jj, s: tl.constexpr, HALF: tl.constexpr, PRECISION: tl.constexpr
):
    """As `line_gradients`, from the pairs that meet at borders between halves of s rows."""
    near = exp2_fast(sums(toward_border(ii, jj, s), fall, not HALF))
    meet = across_border(ii, jj, s)
    reads = operand(tl.where(meet, from_reads, 0.0), HALF)
    writes = operand(tl.where(meet, from_writes, 0.0), HALF)
    keys, queries = operand(k * near, HALF), operand(q * near, HALF)
    to_q = near * tl.dot(reads, keys, input_precision=PRECISION)
    to_k = tl.dot(writes, keys, input_precision=PRECISION)
    to_k = tl.dot(tl.trans(writes), keys, to_k, input_precision=PRECISION)
    to_k = near * tl.dot(tl.trans(reads), queries, to_k, input_precision=PRECISION)
    return to_q, to_k, sums(toward_border(jj, ii, s), q * to_q + k * to_k, not HALF)


@triton.jit
def pair_gradients(
    q, k, fall, half, from_reads, from_writes, ii, jj,
    LINE: tl.constexpr, SPAN: tl.constexpr, BOUNDED: tl.constexpr, HALF: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of q, k `[R, d]` and of the log decays from those of the pairs of `decayed_pairs`."""
    if BOUNDED:
        dq, dk, dfall = line_gradients(q, k, fall, half, from_reads, from_writes, ii, jj, LINE, HALF, PRECISION)
    else:
        dq, dk, dfall = tl.zeros_like(q), tl.zeros_like(k), tl.zeros_like(fall)
    for level in tl.static_range(LEVELS):
        if (1 << level) >= LINE and (1 << level) < SPAN:
            to_q, to_k, moved = border_gradients(
                q, k, fall + half, from_reads, from_writes, ii, jj, 1 << level, HALF, PRECISION
            )
            dq, dk, dfall = dq + to_q, dk + to_k, dfall + moved
    same = tl.sum(tl.where(ii == jj, from_reads, 0.0), 1)[:, None]
    return dq + same * k, dk + same * q, dfall


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
def state_places(i_s, keys, values, WIDTH: tl.constexpr):
    """Where rows `keys` and columns `values` of state `i_s` `[d, d]` lie."""
    return i_s.to(tl.int64) * (WIDTH * WIDTH) + keys[:, None] * WIDTH + values[None, :]


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
        cols = c + tl.arange(0, COLS)
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
                q_norm * scale, k_norm, COLS, WIDTH, WHOLE, HALF, PRECISION,
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
