"""The passes over a program, in order."""

from draftc.compiler.passes.annotate import Annotate
from draftc.compiler.passes.contract import Pass
from draftc.compiler.passes.cost import CostPass
from draftc.compiler.passes.fuse import Fuse
from draftc.compiler.passes.select import Select
from draftc.compiler.passes.verify import Verify

PASSES: tuple[Pass, ...] = (Annotate(), Verify(), Select(), Fuse(), CostPass())
