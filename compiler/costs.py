"""What operations and layers cost, as polynomials in batch, blocks, context and past rows."""

from dataclasses import dataclass, replace

from draftc.compiler.dims import Dim, Lengths, as_dim

ITEM_BYTES = {"bool": 1, "int64": 8, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True, slots=True)
class Cost:
    """One forward pass of an operation: floating-point operations (a multiply-add is two), and bytes moved.

    Bytes are operands read, parameters read and results written, each once, nothing kept in cache between operations. A
    backward pass takes about twice the operations of the forward.
    """

    flops: Dim
    bytes: Dim

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.flops + other.flops, self.bytes + other.bytes)

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(self.flops - other.flops, self.bytes - other.bytes)


NOTHING = Cost(as_dim(0), as_dim(0))


@dataclass(frozen=True, slots=True)
class CacheCost:
    """What one row of the batch keeps between decoding steps.

    `row_bytes` for each row of context, at most `rows` of them (None: all), and `state_bytes` whatever the length.
    """

    row_bytes: int
    state_bytes: int
    rows: int | None

    def bytes_at(self, lengths: Lengths) -> int:
        """Bytes that a batch keeps after the context rows of this call."""
        length = lengths.past + lengths.context
        kept = length if self.rows is None else min(length, self.rows)
        return lengths.batch * (self.state_bytes + self.row_bytes * kept)


@dataclass(frozen=True, slots=True)
class LayerCost:
    """One layer: `dense` is everything but its attention operations, which see at most `window` context rows.

    `absorbed` is the layer around the decoding form of its attention, None where there is none.
    """

    parameters: int
    dense: Cost
    attention: Cost
    cache: CacheCost
    window: int | None
    absorbed: "LayerCost | None" = None

    def flops_at(self, lengths: Lengths) -> int:
        """Floating-point operations of one forward; a window limits the context that attention reads."""
        return self.dense.flops.evaluate(self._kept(lengths)) + self.attention.flops.evaluate(self._seen(lengths))

    def bytes_at(self, lengths: Lengths) -> int:
        """Bytes that one forward moves."""
        return self.dense.bytes.evaluate(self._kept(lengths)) + self.attention.bytes.evaluate(self._seen(lengths))

    def _kept(self, lengths: Lengths) -> Lengths:
        """What the memory of a window returns: latent attention expands these rows, masked or not."""
        return lengths if self.window is None else replace(lengths, past=min(lengths.past, self.window - 1))

    def _seen(self, lengths: Lengths) -> Lengths:
        if self.window is None:
            return lengths
        past = min(lengths.past, max(self.window - lengths.context, 0))
        return replace(lengths, past=past, context=min(lengths.context, self.window))
