"""Tiles of 16 rows in the registers of one warp: layouts, reorderings and small products for the Gluon kernels.

The kernels never shuffle data between lanes. Instead they permute: a product does not care in which order the channels
(or tokens) that it sums over come, as long as both operands agree, and an output may come out in any order that is
undone when it is stored. So every tensor is loaded in 16-byte pieces exactly where the tensor core's m16n8k16 fragments
want it, and the accumulator of one product is the operand of the next.

ACC is the accumulator of mma.sync: lane = 4 * row + pair of columns, rows 8 apart in one lane. LEFT and RIGHT are its
bfloat16 operands, LEFT32 and RIGHT32 its tf32 ones; with a layout chosen as below, `convert_layout` between them moves
nothing. Forward works on tiles [16 tokens, 64 channels], backward on their transposes, [64 or 32 channels, 16 tokens].
Global memory reaches shared memory by asynchronous copies of whole 128-byte lines (COPY); XOR swizzles (SHARED) make
the fragment loads from there free of bank conflicts.
"""

try:
    import triton
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
except ImportError as missing:
    raise ImportError(f"the kernels of kda_gluon need Gluon of Triton 3.6 or later: {missing}") from missing

from draftc.runtime.kda.triton_kernels import LINEAR_ABOVE, LOG2E

TRITON_VERSION = triton.__version__
barrier = getattr(gl, "barrier", None) or gl.thread_barrier  # renamed in Triton 3.7

HALF_LOG2E = gl.constexpr(0.7213475204444817)
SAFE_EXPONENT = gl.constexpr(110.0)  # of 2: e^G' and e^-G' of a segment stay normal float32 numbers

ACC = gl.constexpr(gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[1, 1], instr_shape=[16, 8]))
LEFT = gl.constexpr(gl.DotOperandLayout(operand_index=0, parent=ACC.value, k_width=2))
RIGHT = gl.constexpr(gl.DotOperandLayout(operand_index=1, parent=ACC.value, k_width=2))
LEFT32 = gl.constexpr(gl.DotOperandLayout(operand_index=0, parent=ACC.value, k_width=1))
RIGHT32 = gl.constexpr(gl.DotOperandLayout(operand_index=1, parent=ACC.value, k_width=1))
ROW = gl.constexpr(gl.SliceLayout(1, ACC.value))  # a vector indexed by the rows of ACC
COL = gl.constexpr(gl.SliceLayout(0, ACC.value))  # a vector indexed by its columns

# [16 tokens, 64 channels] read so that `split_channels` lands in RIGHT (gates, values) or in ACC and LEFT (the others).
AS_RIGHT = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [1, 0], [8, 0]], [[2, 0], [4, 0], [0, 32], [0, 8], [0, 16]], [], [], [16, 64]
    )
)
AS_LEFT = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [0, 32], [8, 0]], [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]], [], [], [16, 64]
    )
)
# Transposes: channel = 32 h + 8 c + e of 64 (AS_LEFT64), channel = 4 l + e of 32 (CHANNELS32).
AS_LEFT64 = gl.constexpr(
    gl.DistributedLinearLayout(
        [[1, 0], [2, 0], [4, 0], [0, 1], [0, 8]], [[0, 2], [0, 4], [32, 0], [8, 0], [16, 0]], [], [], [64, 16]
    )
)
CHANNELS32 = gl.constexpr(
    gl.DistributedLinearLayout(
        [[1, 0], [2, 0], [0, 1], [0, 8]], [[0, 2], [0, 4], [4, 0], [8, 0], [16, 0]], [], [], [32, 16]
    )
)
# Sums over rows that stay in registers or shared memory until the end: [channels or lanes, columns of ACC].
PARTIAL = gl.constexpr(
    gl.DistributedLinearLayout([[8, 0], [16, 0]], [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]], [], [], [32, 4])
)
LANES = gl.constexpr(gl.DistributedLinearLayout([], [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]], [], [], [8, 4]))
# A 16x16 matrix as 256 numbers in fragment order, and a short vector: 16 bytes a lane.
PACKED = gl.constexpr(gl.DistributedLinearLayout([[1], [2], [4]], [[8], [16], [32], [64], [128]], [], [], [256]))
VECTOR = gl.constexpr(gl.BlockedLayout([4], [32], [1], [0]))

COPY64 = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [1, 1], [1, 0]))
COPY32 = gl.constexpr(gl.BlockedLayout([1, 8], [8, 4], [1, 1], [1, 0]))
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
FLAT2 = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
SHARED64 = gl.constexpr(
    gl.SharedLinearLayout([[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 32], [2, 8], [4, 16], [8, 0]], [], 128)
)
# 16-byte unit (c8, c16 ^ r1, r0 ^ r2) of row r and channel c.
SHARED32 = gl.constexpr(
    gl.SharedLinearLayout([[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [1, 0], [2, 16], [5, 0], [8, 0]], [], 128)
)


@gluon.jit
def exp2_fast(x):
    """2^x by the special-function unit alone; results below 2^-126 become 0."""
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def reciprocal_fast(x):
    """1/x to one unit in the last place."""
    return gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def log2_fast(x):
    """Binary logarithm of a normal number."""
    return gl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def rounded_pair(x):
    """bfloat16 of `x`, two at once; opaque, so that widening it again does not become slow scalar conversions."""
    return gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [x], dtype=gl.bfloat16, is_pure=True, pack=2
    )


@gluon.jit
def nearest_tf32(x):
    """`x` plus half a step of tf32, so that the tensor core, which truncates, rounds to nearest."""
    return (x.to(gl.int32, bitcast=True) + 4096).to(gl.float32, bitcast=True)


@gluon.jit
def kept_tf32(x):
    """What the tensor core keeps of `x` as a tf32 operand."""
    return (x.to(gl.int32, bitcast=True) & -8192).to(gl.float32, bitcast=True)


@gluon.jit
def product(a, b, acc):
    """`a [m, k] @ b [n, k]ᵀ + acc`, bfloat16 operands in ACC: no data moves."""
    return mma_v2(gl.convert_layout(a, LEFT), gl.convert_layout(gl.permute(b, [1, 0]), RIGHT), acc)


@gluon.jit
def by_token(x):
    """`[m, 16]` in ACC, columns in the order in which tf32 fragments take the tokens they sum over."""
    m: gl.constexpr = x.shape[0]
    return x.reshape([m, 2, 4, 2]).permute([0, 1, 3, 2]).reshape([m, 16])


@gluon.jit
def product32(a, b, acc):
    """`a [m, 16] @ b [n, 16]ᵀ + acc`, float32 operands in ACC, truncated to tf32."""
    return mma_v2(
        gl.convert_layout(by_token(a), LEFT32),
        gl.convert_layout(gl.permute(by_token(b), [1, 0]), RIGHT32),
        acc,
        input_precision="tf32",
    )


@gluon.jit
def split_channels(x):
    """`[16, 64]`: channels from their own order to that of fragments."""
    return x.reshape([16, 2, 4, 8]).permute([0, 3, 2, 1]).reshape([16, 64])


@gluon.jit
def joined_channels(x):
    """Undo `split_channels`."""
    return x.reshape([16, 8, 4, 2]).permute([0, 3, 2, 1]).reshape([16, 64])


@gluon.jit
def summed_channels(x):
    """`[16, 64]` in AS_LEFT -> ACC, channels in an order to sum over that keeps pairs of bfloat16 together."""
    return gl.convert_layout(x.reshape([16, 2, 4, 4, 2]).permute([0, 1, 3, 2, 4]).reshape([16, 64]), ACC)


@gluon.jit
def split_channels64(x):
    """`[64, 16]` in AS_LEFT64 -> ACC, channels in the order of its rows."""
    return gl.convert_layout(x.reshape([2, 4, 8, 16]).permute([2, 1, 0, 3]).reshape([64, 16]), ACC)


@gluon.jit
def joined_channels64(x):
    """Undo `split_channels64`."""
    return gl.convert_layout(x.reshape([8, 4, 2, 16]).permute([2, 1, 0, 3]).reshape([64, 16]), AS_LEFT64)


@gluon.jit
def split_channels32(x):
    """`[32, 16]` in CHANNELS32 -> ACC, channels in the order of its rows."""
    return gl.convert_layout(x.reshape([8, 4, 16]).permute([1, 0, 2]).reshape([32, 16]), ACC)


@gluon.jit
def joined_channels32(x):
    """Undo `split_channels32`."""
    return gl.convert_layout(x.reshape([4, 8, 16]).permute([1, 0, 2]).reshape([32, 16]), CHANNELS32)


@gluon.jit
def packed(x):
    """`[16, 16]` in ACC as 256 numbers in fragment order."""
    return gl.convert_layout(x.reshape([2, 8, 2, 4, 2]).permute([1, 3, 2, 0, 4]).reshape([256]), PACKED)


@gluon.jit
def unpacked(x):
    """Undo `packed`."""
    return gl.convert_layout(x.reshape([8, 4, 2, 2, 2]).permute([3, 0, 2, 1, 4]).reshape([16, 16]), ACC)


@gluon.jit
def same_segment(ii, jj, s: gl.constexpr):
    """Rows of one segment of s rows."""
    return ii // s == jj // s


@gluon.jit
def across_border(ii, jj, s: gl.constexpr):
    """Pairs that meet at a border between halves of s rows: i above, j below."""
    return (ii // (2 * s) == jj // (2 * s)) & ((ii // s) % 2 == 1) & ((jj // s) % 2 == 0)


@gluon.jit
def toward_border(ii, jj, s: gl.constexpr):
    """0/1: rows between row i and the border of its half, up to i in an upper half, after i in a lower one."""
    up = (ii // s) % 2 == 1
    return gl.where((ii // s == jj // s) & ((up & (jj <= ii)) | ((ii // s % 2 == 0) & (jj > ii))), 1.0, 0.0)


@gluon.jit
def from_reference(ii, jj, BOUNDED: gl.constexpr):
    """Row i of the exponent G': a running sum; without a bound within 8 rows, less half of their total."""
    if BOUNDED:
        return gl.where(ii >= jj, 1.0, 0.0)
    else:
        return gl.where(same_segment(ii, jj, 8), gl.where(ii >= jj, 0.5, -0.5), 0.0)


@gluon.jit
def log2_decay(raw, rate, bound, BOUNDED: gl.constexpr):
    """Binary logarithm of the decay, less half the bound where there is one, and d(log decay)/d(raw)."""
    if BOUNDED:
        share = reciprocal_fast(1.0 + exp2_fast(raw * (-LOG2E * rate)))
        return share * (bound * LOG2E) - (bound * HALF_LOG2E), (bound * rate) * share * (1.0 - share)
    else:
        grown = 1.0 + exp2_fast(raw * LOG2E)
        softplus = gl.where(raw > LINEAR_ABOVE, raw * LOG2E, log2_fast(grown))
        return softplus * -rate, rate * reciprocal_fast(grown) - rate


@gluon.jit
def strength_of(logit):
    """sigmoid(logit), in float32."""
    return reciprocal_fast(1.0 + exp2_fast(logit.to(gl.float32) * -LOG2E))


@gluon.jit
def load_rounded(pointers):
    """Parameters of the gate as float32, rounded through bfloat16 as every backend rounds them."""
    return gl.load(pointers).to(gl.bfloat16).to(gl.float32)


@gluon.jit
def head_rate(A_log, i_h):
    """e^A_log of a head, in every lane."""
    return gl.max(exp2_fast(load_rounded(A_log + i_h + gl.zeros([16], gl.int32, layout=ROW)) * LOG2E), 0)


@gluon.jit
def copied_places(i_h, HEADS: gl.constexpr, WIDTH: gl.constexpr):
    """Offsets `[16, 64]` of the first 64 channels of head `i_h` in the first tile, as whole lines are copied."""
    lines = gl.arange(0, 16, layout=gl.SliceLayout(1, COPY64))[:, None] * (HEADS * WIDTH)
    return lines + gl.arange(0, 64, layout=gl.SliceLayout(0, COPY64))[None, :] + i_h * WIDTH


@gluon.jit
def copy_three(b0, b1, b2, c, p0, p1, p2, places, exists, CHANNELS: gl.constexpr):
    """Start the copies of channels CHANNELS*c and following of three tensors, as one group."""
    async_copy.async_copy_global_to_shared(b0.index(c), p0 + places + CHANNELS * c, mask=exists)
    async_copy.async_copy_global_to_shared(b1.index(c), p1 + places + CHANNELS * c, mask=exists)
    async_copy.async_copy_global_to_shared(b2.index(c), p2 + places + CHANNELS * c, mask=exists)
    async_copy.commit_group()


@gluon.jit
def copy_both(buffer, pointer, places, exists):
    """Start the copies of both halves of 128 channels, as part of the group that is open."""
    async_copy.async_copy_global_to_shared(buffer.index(0), pointer + places, mask=exists)
    async_copy.async_copy_global_to_shared(buffer.index(1), pointer + places + 64, mask=exists)
