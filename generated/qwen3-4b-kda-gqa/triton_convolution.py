"""Causal depthwise convolution over short sequences with SiLU, as Triton kernels that read every value once.

Per channel, with taps w_0..w_K-1 and rows before the first being zero:

    z_t = Σ_i w_i x_(t-K+1+i)        y_t = z_t σ(z_t)

Backward recomputes z from x:

    f_t = dy_t σ(z_t) (1 + z_t (1 - σ(z_t)))        dx_t = Σ_i w_i f_(t+K-1-i)        dw_i = Σ_t f_t x_(t-K+1+i)

A program walks down the rows of some channels and carries the last K rows of x and of f in registers, so no value is
fetched twice and no sum crosses threads. Rows to come are fetched AHEAD of their use. A sequence is walked in pieces: a
piece first reads the K-1 rows above it, and backward also the K-1 rows below it, which the gradients of its last rows
need. Programs of backward take pieces in turn and keep one sum of dw each: every sum is in fixed order.
"""

try:
    import triton
    import triton.language as tl
except ImportError as missing:
    raise ImportError(f"the kernels of kda_triton need Triton: {missing}") from missing


@triton.jit
def appended(rows, row):
    """The tuple `rows` with one more; the compiler unpacks no tuple inside another."""
    return rows + (row,)


@triton.jit
def fetch_row(rows, t, end, P, cols):
    """Row `t` of a sequence `[T, P]` as it is stored; zero outside of rows 0..end-1 and of P channels."""
    return tl.load(rows + t.to(tl.int64) * P + cols, mask=(cols < P) & (t >= 0) & (t < end), other=0.0)


@triton.jit
def fetch_rows(rows, t, end, P, cols, COUNT: tl.constexpr):
    """A tuple of COUNT rows from `t` on."""
    found = ()
    for i in tl.static_range(COUNT):
        found = appended(found, fetch_row(rows, t + i, end, P, cols))
    return found


@triton.jit
def widened(rows, COUNT: tl.constexpr):
    """COUNT rows in float32."""
    found = ()
    for i in tl.static_range(COUNT):
        found = appended(found, rows[i].to(tl.float32))
    return found


@triton.jit
def zeros(COUNT: tl.constexpr, COLS: tl.constexpr):
    """A tuple of COUNT rows of zeros."""
    found = ()
    for _ in tl.static_range(COUNT):
        found = appended(found, tl.zeros([COLS], tl.float32))
    return found


@triton.jit
def fetch_taps(weight, P, cols, K: tl.constexpr):
    """The K taps of some channels of `weight [P, K]`, in float32."""
    found = ()
    for i in tl.static_range(K):
        found = appended(found, tl.load(weight + cols * K + i, mask=cols < P, other=0.0).to(tl.float32))
    return found


@triton.jit
def mixed_row(window, taps, K: tl.constexpr):
    """Σ_i taps_i window_i."""
    z = window[0] * taps[0]
    for i in tl.static_range(1, K):
        z += window[i] * taps[i]
    return z


@triton.jit
def returned_row(slopes, taps, K: tl.constexpr):
    """Σ_i taps_i slopes_(K-1-i): what a row passes back to the oldest row of the window."""
    dx = slopes[0] * taps[K - 1]
    for i in tl.static_range(1, K):
        dx += slopes[i] * taps[K - 1 - i]
    return dx


@triton.jit
def added_shares(shares, slope, window, K: tl.constexpr):
    """The sums of dw with one row more."""
    found = ()
    for i in tl.static_range(K):
        found = appended(found, shares[i] + slope * window[i])
    return found


@triton.jit
def store_row(rows, x, t, P, cols, exists):
    """Store row `t` of a sequence `[T, P]` where `exists`."""
    tl.store(rows + t.to(tl.int64) * P + cols, x.to(rows.dtype.element_ty), mask=(cols < P) & exists)


@triton.jit
def piece_place(piece, T, P, pieces, length):
    """Where the sequence of a piece starts, in values, and its first row and the one after its last."""
    first = piece % pieces * length
    return (piece // pieces).to(tl.int64) * T * P, first, tl.minimum(first + length, T)


@triton.jit(do_not_specialize=["T", "pieces", "length"])
def convolution_forward(x, weight, out, T, P, pieces, length, K: tl.constexpr, AHEAD: tl.constexpr, COLS: tl.constexpr):
    """Y of `x [M, T, P]` and `weight [P, K]`: one piece of some channels."""
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    start, first, last = piece_place(tl.program_id(0), T, P, pieces, length)
    taps = fetch_taps(weight, P, cols, K)
    window = widened(fetch_rows(x + start, first - (K - 1), last, P, cols, K - 1), K - 1)
    waiting = fetch_rows(x + start, first, last, P, cols, AHEAD)
    t = first
    while t < last:
        waiting = appended(waiting, fetch_row(x + start, t + AHEAD, last, P, cols))
        window = appended(window, waiting[0].to(tl.float32))
        z = mixed_row(window, taps, K)
        store_row(out + start, z * tl.sigmoid(z), t, P, cols, t < last)
        waiting = waiting[1:]
        window = window[1:]
        t += 1


@triton.jit(do_not_specialize=["T", "all_pieces", "pieces", "length"])
def convolution_backward(
    x, weight, dout, dx, partial, T, P, all_pieces, pieces, length,
    K: tl.constexpr, AHEAD: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Every n-th piece of some channels, n programs: dx, and their sum of dw into `partial [n, K, P]`."""
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    taps = fetch_taps(weight, P, cols, K)
    shares = zeros(K, COLS)
    piece = tl.program_id(0)
    while piece < all_pieces:
        start, first, last = piece_place(piece, T, P, pieces, length)
        end = tl.minimum(last + K - 1, T)
        window = widened(fetch_rows(x + start, first - (K - 1), end, P, cols, K - 1), K - 1)
        slopes = zeros(K - 1, COLS)
        waiting = fetch_rows(x + start, first, end, P, cols, AHEAD)
        given = fetch_rows(dout + start, first, end, P, cols, AHEAD)
        t = first
        while t < last + K - 1:
            waiting = appended(waiting, fetch_row(x + start, t + AHEAD, end, P, cols))
            given = appended(given, fetch_row(dout + start, t + AHEAD, end, P, cols))
            window = appended(window, waiting[0].to(tl.float32))
            z = mixed_row(window, taps, K)
            share = tl.sigmoid(z)
            slope = given[0].to(tl.float32) * share * (1.0 + z * (1.0 - share))
            slopes = appended(slopes, slope)
            store_row(dx + start, returned_row(slopes, taps, K), t - (K - 1), P, cols, t - (K - 1) >= first)
            shares = added_shares(shares, tl.where(t < last, slope, 0.0), window, K)
            waiting = waiting[1:]
            given = given[1:]
            window = window[1:]
            slopes = slopes[1:]
            t += 1
        piece += tl.num_programs(0)
    for i in tl.static_range(K):
        store_row(partial, shares[i], tl.program_id(0) * K + i, P, cols, True)
