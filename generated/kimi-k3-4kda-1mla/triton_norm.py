"""RMSNorm over each head times the sigmoid of a gate, as Triton kernels that read every value once.

Per row of d channels, with r = (mean(x²) + eps)^-½, n = x r and s = σ(g):

    y = n w s
    dn = dy w s        dx = r (dn - n mean(dn n))        dg = dy n w s (1 - s)        dw = Σ dy n s over all rows

Nothing is kept for backward but the inputs. Its programs take tiles of rows in turn and sum dw by position in the tile,
then over the tile: every sum is in fixed order.
"""

try:
    import triton
    import triton.language as tl
except ImportError as missing:
    raise ImportError(f"the kernels of kda_triton need Triton: {missing}") from missing


@triton.jit
def row_places(tile, rows, D, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Where the values of a tile of rows `[rows, D]` lie, and which of them exist."""
    lines = tile.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, COLS)
    return lines[:, None] * D + cols[None, :], (lines < rows)[:, None] & (cols < D)[None, :]


@triton.jit
def fetch_wide(source, places, exists):
    """What lies at `places`, in float32; zero where nothing exists."""
    return tl.load(source + places, mask=exists, other=0.0).to(tl.float32)


@triton.jit
def normed_rows(x, D, eps):
    """Rows divided by their root mean square, and what they were multiplied with."""
    rate = tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None]
    return x * rate, rate


@triton.jit(do_not_specialize=["rows"])
def norm_forward(x, gate, weight, out, rows, D, eps, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Y of one tile of rows."""
    cols = tl.arange(0, COLS)
    places, exists = row_places(tl.program_id(0), rows, D, ROWS, COLS)
    w = fetch_wide(weight, cols, cols < D)[None, :]
    n, _ = normed_rows(fetch_wide(x, places, exists), D, eps)
    y = n * w * tl.sigmoid(fetch_wide(gate, places, exists))
    tl.store(out + places, y.to(out.dtype.element_ty), mask=exists)


@triton.jit(do_not_specialize=["tiles", "rows"])
def norm_backward(
    x, gate, weight, dout, dx, dgate, partial, tiles, rows, D, eps, ROWS: tl.constexpr, COLS: tl.constexpr
):
    """Every n-th tile of rows, n programs: dx, dg, and their sum of dw into `partial [n, D]`."""
    cols = tl.arange(0, COLS)
    w = fetch_wide(weight, cols, cols < D)[None, :]
    shares = tl.zeros([ROWS, COLS], tl.float32)
    tile = tl.program_id(0)
    while tile < tiles:
        places, exists = row_places(tile, rows, D, ROWS, COLS)
        n, rate = normed_rows(fetch_wide(x, places, exists), D, eps)
        open_share = tl.sigmoid(fetch_wide(gate, places, exists))
        dy = fetch_wide(dout, places, exists) * open_share
        shares += dy * n
        dn = dy * w
        to_x = rate * (dn - n * (tl.sum(dn * n, 1) / D)[:, None])
        tl.store(dx + places, to_x.to(dx.dtype.element_ty), mask=exists)
        tl.store(dgate + places, (dn * n * (1.0 - open_share)).to(dgate.dtype.element_ty), mask=exists)
        tile += tl.num_programs(0)
    tl.store(partial + tl.program_id(0) * D + cols, tl.sum(shares, 0), mask=cols < D)
