"""The rounds of speculative decoding: propose, verify, keep what stands, row by row of a batch."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers.generation.logits_process import LogitsProcessorList

from draftc.runtime.generation.drafter import Drafter, Verified
from draftc.runtime.generation.history import processed
from draftc.runtime.generation.prompts import Limits, Prompts
from draftc.runtime.generation.reader import TargetReader
from draftc.runtime.generation.result import Round
from draftc.runtime.generation.sampling import Judge
from draftc.runtime.heads.scores import Drafted


class Decoding:
    """A run over a batch of prompts. Rows that are finished leave the batch; the others go on without them."""

    def __init__(
        self,
        reader: TargetReader,
        drafter: Drafter,
        judge: Judge,
        processors: LogitsProcessorList,
        limits: Limits,
        prompts: Prompts,
    ) -> None:
        self.reader = reader
        self.drafter = drafter
        self.judge = judge
        self.processors = processors
        self.limits = limits
        self.device = prompts.tokens.device
        self.rows = list(range(len(prompts.texts)))
        self.prompts = prompts
        self.new: dict[int, list[int]] = {row: [] for row in self.rows}
        self.verified = Verified(torch.empty(0), ())

    def rounds(self) -> Iterator[Round]:
        """Read the prompts, then go round until every row is finished."""
        yield self.start()
        while self.rows:
            yield self.round()

    @torch.no_grad()
    def start(self) -> Round:
        """The target reads the prompts and chooses the first token of each row."""
        tokens = self.prompts.tokens
        logits, taps = self.reader.read(tokens, 1)
        self.reader.settle(tokens.shape[1], [0] * len(self.rows), 0)
        self.verified = Verified(taps, (0,) * len(self.rows))
        _, following = self.judged(nothing_drafted(tokens[:, -1]), logits)
        return self.finish([[token] for token in following.tolist()], {})

    @torch.no_grad()
    def round(self) -> Round:
        """The draft proposes, the target verifies, both keep what stands."""
        anchors = torch.tensor([self.new[row][-1] for row in self.rows], device=self.device)
        drafted = self.proposal(anchors)
        candidates = torch.cat([anchors[:, None], drafted.tokens], dim=1)
        read = candidates.shape[1]
        logits, taps = self.reader.read(candidates, read)
        accepted, following = self.judged(drafted, logits)
        kept = [count + 1 for count in accepted.tolist()]
        most = max(kept)
        behind = [most - count for count in kept]
        self.reader.settle(most, behind, read - most)
        self.verified = Verified(taps[:, :most], tuple(behind))
        proposals = zip(drafted.tokens.tolist(), kept, following.tolist(), strict=True)
        tokens = [[*line[: count - 1], last] for line, count, last in proposals]
        return self.finish(tokens, dict(zip(self.rows, kept, strict=True)))

    def proposal(self, anchors: Tensor) -> Drafted:
        """At most as many tokens as the row that needs most can still take before the target's own; maybe none."""
        room = self.limits.max_new_tokens - min(len(self.new[row]) for row in self.rows)
        width = min(self.drafter.width, room - 1)
        if width < 1:
            return nothing_drafted(anchors)
        return shortened(self.drafter.propose(anchors, self.verified, self.judge.choose), width)

    def judged(self, drafted: Drafted, logits: Tensor) -> tuple[Tensor, Tensor]:
        """What stands of `drafted`, D tokens, under `logits [B, D+1, V]`: accepted and following, both `[B]`."""
        texts = [(*self.prompts.texts[row], *self.new[row]) for row in self.rows] if self.processors else ()
        return self.judge.judge(drafted, processed(self.processors, logits, texts, drafted.tokens))

    def finish(self, tokens: Sequence[Sequence[int]], lengths: dict[int, int]) -> Round:
        """Add the new `tokens` of every running row, and let go of the rows that end with them."""
        added = {}
        for row, line in zip(self.rows, tokens, strict=True):
            added[row] = self.limits.cut(line, len(self.new[row]))
            self.new[row].extend(added[row])
        self.release([at for at, row in enumerate(self.rows) if not self.limits.reached(self.new[row])])
        return Round(added, lengths)

    def release(self, running: Sequence[int]) -> None:
        """Keep the places `running` of the batch only."""
        if 0 < len(running) < len(self.rows):
            self.reader.select(running, self.device)
            self.drafter.select(running, self.device)
            self.verified = self.verified.select(running)
        self.rows = [self.rows[at] for at in running]


def nothing_drafted(anchors: Tensor) -> Drafted:
    """No proposal for rows with the last tokens `anchors [B]`."""
    return Drafted(anchors[:, None][:, :0], torch.zeros(len(anchors), 0, 1, device=anchors.device), None, None)


def shortened(drafted: Drafted, count: int) -> Drafted:
    """The first `count` tokens of a proposal."""
    candidates = drafted.candidates
    if candidates is not None and candidates.ndim > 1:
        candidates = candidates[:, :count]
    confidence = None if drafted.confidence is None else drafted.confidence[:, :count]
    return Drafted(drafted.tokens[:, :count], drafted.scores[:, :count], candidates, confidence)
