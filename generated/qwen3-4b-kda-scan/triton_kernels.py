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
def state_places(i_s, keys, values, WIDTH: tl.constexpr):
    """Where rows `keys` and columns `values` of state `i_s` `[d, d]` lie."""
    return i_s.to(tl.int64) * (WIDTH * WIDTH) + keys[:, None] * WIDTH + values[None, :]
