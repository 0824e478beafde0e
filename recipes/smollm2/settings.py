"""How much of everything an experiment does."""

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
BASELINE = "gqa"


@dataclass(frozen=True)
class Variant:
    """A layout of `layouts/` and the loss it is trained with."""

    layout: str
    loss: str = "own"

    @property
    def name(self) -> str:
        """Name of the variant in results: layout, and the loss where it is not the family's own."""
        return self.layout if self.loss == "own" else f"{self.layout} {self.loss}"

    @property
    def path(self) -> Path:
        """The layout's file."""
        return FOLDER / "layouts" / f"{self.layout}.yaml"


LAYOUTS = (BASELINE, "kda-reset", "kda-scan", "mla", "gqa-dspark", "gqa-domino")
VARIANTS = (*map(Variant, LAYOUTS), *(Variant(layout, "lk-alpha") for layout in LAYOUTS[:3]))
TOY_VARIANT = Variant("toy")


@dataclass(frozen=True)
class Budget:
    """Data, training and measuring of every variant alike.

    `samples` answers to each of `prompts` of a `task` at `temperature` (0: greedy), of at most `answer` tokens, in
    batches of `sampled_at_once`. `steps` of `batch_size` rows with `num_anchors` blocks each. Acceptance on `held_out`
    prompts, `new_tokens` each; of these prompts the first `timed` also one at a time, for speed, and the first `exact`
    in float32, whose text must be the target's own greedy one.
    """

    task: str
    prompts: int
    samples: int
    answer: int
    temperature: float
    steps: int
    batch_size: int
    num_anchors: int
    learning_rate: float
    held_out: int
    timed: int
    exact: int
    new_tokens: int
    sampled_at_once: int


CARD = Budget(
    task="requests", prompts=1840, samples=2, answer=192, temperature=0.7, sampled_at_once=1840,
    steps=450, batch_size=32, num_anchors=32, learning_rate=1e-3,
    held_out=128, timed=4, exact=6, new_tokens=96,
)  # fmt: skip
TOY = Budget(
    task="counting", prompts=48, samples=1, answer=48, temperature=0.0, sampled_at_once=48,
    steps=240, batch_size=8, num_anchors=16, learning_rate=2e-3,
    held_out=8, timed=2, exact=4, new_tokens=40,
)  # fmt: skip
