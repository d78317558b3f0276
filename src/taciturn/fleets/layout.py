"""How one user's text becomes batches for local training: continuous unrolls (McMahan et al. 2018, §3).

>>> layout = Layout(batch_size=2, unroll=3, steps=2)
>>> layout.batches(np.arange(4, 14)).tolist()
[[[2, 4, 5, 6], [9, 10, 11, 12]], [[6, 7, 8, 9], [12, 13, 0, 0]]]
"""

import math
from dataclasses import dataclass

import numpy as np

from taciturn.data.vocabulary import BEGIN


@dataclass(frozen=True)
class Layout:
    batch_size: int  # B
    unroll: int  # tokens predicted in a row
    steps: int  # batches a user has at most; the rest of a longer text is left out

    @classmethod
    def for_tokens(cls, batch_size: int, unroll: int, tokens: int) -> "Layout":
        return cls(batch_size, unroll, math.ceil(tokens / (batch_size * unroll)))

    def batches(self, tokens: np.ndarray) -> np.ndarray:
        """int32 [steps, batch, unroll + 1]; every token is a target once, the first after <bos>.

        A batch holds pieces from all over the text, not neighbours: local steps see more of the user at once.
        """
        capacity = self.steps * self.batch_size * self.unroll
        text = np.concatenate([[BEGIN], tokens[:capacity]]).astype(np.int32)
        rows = math.ceil((len(text) - 1) / self.unroll)
        steps = max(1, math.ceil(rows / self.batch_size))
        starts = np.arange(rows) * self.unroll
        pieces = np.pad(text, (0, self.unroll))[starts[:, None] + np.arange(self.unroll + 1)]
        filled = np.zeros((self.steps, self.batch_size, self.unroll + 1), np.int32)
        filled[np.arange(rows) % steps, np.arange(rows) // steps] = pieces
        return filled
