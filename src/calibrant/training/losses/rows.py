"""What a loss sees of a batch."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Rows:
    """A batch as rows, ignored ones kept in place so that no shape depends on values.

    Attributes:
        logits: (M, K) float32 or float64; zeros where ignored.
        target: (M,) int64 classes; 0 where ignored.
        valid: (M,) bool, False where ignored.
        features: (M, D) as float32 or float64, or None; zeros where ignored.
        index: (M,) positions of the rows in the data set, or None.
        log_probs: (M, K) log softmax.
        true_log_prob: (M,) log probability of the target.
        weight: (M,) 1 where valid, else 0.
        count: () number of valid rows.
    """

    logits: Tensor
    target: Tensor
    valid: Tensor
    features: Tensor | None = None
    index: Tensor | None = None
    log_probs: Tensor = field(init=False)
    true_log_prob: Tensor = field(init=False)
    weight: Tensor = field(init=False)
    count: Tensor = field(init=False)

    # Not lazily: a cached property would end torch.compile's graph, and all losses use these.
    def __post_init__(self) -> None:
        self.log_probs = self.logits.log_softmax(1)
        self.true_log_prob = pick(self.log_probs, self.target)
        self.weight = self.valid.to(self.logits.dtype)
        self.count = self.weight.sum()

    @property
    def cross_entropy(self) -> Tensor:
        """(M,) minus the log probability of the target."""
        return -self.true_log_prob

    @property
    def confidence(self) -> Tensor:
        """(M,) largest probability."""
        return self.log_probs.amax(1).exp()

    @property
    def correct(self) -> Tensor:
        """(M,) 1 where the largest logit is the target's, else 0; no gradient."""
        return (self.logits.detach().argmax(1) == self.target).to(self.logits.dtype)


def pick(table: Tensor, columns: Tensor) -> Tensor:
    """Return (M,) the entry of each row of `table` (M, K) in its column."""
    return table.gather(1, columns[:, None])[:, 0]
