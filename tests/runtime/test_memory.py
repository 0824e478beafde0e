"""What a layer keeps: verified rows only, under transformers' own caches, and never a silent mistake."""

import pytest
import torch
from transformers import DynamicCache, StaticCache
from transformers.cache_utils import DFlashCache, DynamicLayer, DynamicSlidingWindowLayer

from draftc.runtime.memory import DraftCache, NoMemory, RecurrentMemory, StatelessLayer, memories
from tests.runtime.drafts import FULL, SLIDING, config_of

KINDS = ("state", "keys", "none", "keys")


def hybrid_cache(kind: type[DynamicCache] = DraftCache) -> DynamicCache:
    types = ["linear_attention", "full_attention", "linear_attention", "sliding_attention"]
    return kind(config=config_of(FULL, FULL, FULL, SLIDING, layer_types=types))


def commit(memory: RecurrentMemory, rows: int, block: int = 4, tail: int = 3, value: float = 1.0) -> torch.Tensor:
    context = torch.full((1, rows, 8), value)
    before, state = memory.recall(context, tail, 2, 4)
    read = torch.cat([before, context], dim=1)
    return memory.commit(state + value, read, torch.tensor([[rows]]), tail, rows + block)


@pytest.mark.parametrize("kind", [DraftCache, DynamicCache, DFlashCache])
def test_a_cache_of_transformers_is_fitted_once(kind: type[DynamicCache]) -> None:
    cache = hybrid_cache(kind)
    first = memories(cache, KINDS)
    assert [type(layer) for layer in cache.layers] == [
        RecurrentMemory,
        DynamicLayer,
        StatelessLayer,
        DynamicSlidingWindowLayer,
    ]
    assert [type(memory) for memory in first] == [RecurrentMemory, DynamicLayer, NoMemory, DynamicSlidingWindowLayer]
    assert cache.layers[3].record_past
    again = memories(cache, KINDS)
    assert all(a is b for a, b in zip(first, again, strict=True) if not isinstance(a, NoMemory))


def test_no_cache_gives_memories_that_keep_nothing() -> None:
    k, v = torch.ones(1, 2, 5, 4), torch.zeros(1, 2, 5, 3)
    for memory in memories(None, KINDS):
        assert memory.update(k, v) == (k, v)
        assert memory.get_seq_length() == 0
        assert memory.get_mask_sizes(5) == (5, 0)
        states = torch.ones(1, 2, 4, 4)
        assert memory.commit(states, k, torch.tensor([[2]]), 3, 9) is states


def test_a_cache_for_another_model_and_a_static_one() -> None:
    with pytest.raises(ValueError, match="4 layers and the draft 2"):
        memories(hybrid_cache(), ("keys", "keys"))
    config = config_of(FULL, FULL)
    config.num_attention_heads = config.num_key_value_heads = 4
    with pytest.raises(TypeError, match="StaticLayer"):
        memories(StaticCache(config=config, max_cache_len=16), ("keys", "keys"))


def test_an_empty_cache_is_filled() -> None:
    cache = DynamicCache()
    assert [type(memory) for memory in memories(cache, KINDS)] == [
        RecurrentMemory,
        DynamicLayer,
        NoMemory,
        DynamicLayer,
    ]
    assert len(cache.layers) == 4


@pytest.mark.parametrize("memory", [NoMemory(), RecurrentMemory()])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_an_empty_state_is_zero_and_wide(memory: NoMemory | RecurrentMemory, dtype: torch.dtype) -> None:
    tail, state = memory.recall(torch.ones(2, 5, 8, dtype=dtype), 3, 2, 4)
    assert (tail.shape, tail.dtype) == ((2, 3, 8), dtype)
    assert state.shape == (2, 2, 4, 4)
    assert state.dtype == torch.promote_types(dtype, torch.float32)
    assert not tail.any()
    assert not state.any()


def test_a_state_counts_rows_as_attention_does_and_keeps_only_context() -> None:
    memory = RecurrentMemory()
    returned = commit(memory, 6)
    assert memory.get_seq_length() == 10
    assert memory.state is returned
    memory.crop(-4)
    assert memory.get_seq_length() == 6
    assert memory.get_mask_sizes(2) == (8, 0)
    tail, state = memory.recall(torch.zeros(1, 2, 8), 3, 2, 4)
    assert torch.equal(tail, torch.ones(1, 3, 8))
    assert torch.equal(state, torch.ones(1, 2, 4, 4))
    commit(memory, 2, value=5.0)
    assert torch.equal(memory.tail[0, :, 0], torch.tensor([1.0, 5.0, 5.0]))
    assert torch.equal(memory.state, torch.full((1, 2, 4, 4), 6.0))


def test_no_context_rows_and_no_tail() -> None:
    memory = RecurrentMemory()
    commit(memory, 0)
    assert torch.equal(memory.tail, torch.zeros(1, 3, 8))
    memory = RecurrentMemory()
    commit(memory, 5, tail=0)
    assert memory.tail.shape == (1, 0, 8)


def test_a_tail_does_not_hold_the_whole_context() -> None:
    memory = RecurrentMemory()
    commit(memory, 1000)
    assert memory.tail.untyped_storage().nbytes() == memory.tail.nbytes


@pytest.mark.parametrize("removed", [-5, 4, -11])
def test_verified_rows_of_a_state_cannot_be_dropped(removed: int) -> None:
    memory = RecurrentMemory()
    commit(memory, 6)
    with pytest.raises(ValueError, match="4 last rows"):
        memory.crop(removed)
    assert memory.get_seq_length() == 10


def test_a_state_takes_no_keys() -> None:
    with pytest.raises(TypeError, match="no keys"):
        RecurrentMemory().update(torch.ones(1), torch.ones(1))


def test_a_whole_hybrid_cache_crops_resets_and_reorders() -> None:
    cache = hybrid_cache()
    state, full, _, sliding = memories(cache, KINDS)
    commit(state, 6)
    k = torch.randn(1, 2, 10, 4)
    full.update(k, k)
    sliding.update(k, k)
    assert cache.get_seq_length() == 10
    cache.crop(-4)
    assert cache.get_seq_length() == full.get_seq_length() == sliding.get_seq_length() == state.get_seq_length() == 6
    assert cache.is_croppable
    cache.batch_repeat_interleave(2)
    assert state.state.shape[0] == state.tail.shape[0] == full.keys.shape[0] == 2
    state.state[1] += 1
    cache.batch_select_indices(torch.tensor([1]))
    assert torch.equal(state.state, torch.full((1, 2, 4, 4), 2.0))
    cache.batch_repeat_interleave(2)
    cache.reorder_cache(torch.tensor([1, 0]))
    cache.reset()
    assert state.get_seq_length() == 0
    assert not state.recall(torch.ones(1, 1, 8), 3, 2, 4)[1].any()


def test_a_stateless_first_layer_leaves_the_count_to_the_next() -> None:
    cache = DraftCache(config=config_of(FULL, FULL, layer_types=["linear_attention", "full_attention"]))
    _, full = memories(cache, ("none", "keys"))
    full.update(torch.ones(1, 2, 7, 4), torch.ones(1, 2, 7, 4))
    cache.crop(-4)
    assert cache.get_seq_length() == 3
