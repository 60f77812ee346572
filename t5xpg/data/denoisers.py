"""UL2's mixture of denoisers as data (Tay et al. 2022, section 3.1.2 and table 1). Standard library only.

The paper names seven settings by the mean length of spans, the share of corrupted tokens and the number of spans:
R (3, 0.15, n) and (8, 0.15, n); S (L/4, 0.25, 1); X (3, 0.5, n), (8, 0.5, n), (64, 0.15, n) and (64, 0.5, n). "All
tasks have an approximate equal participation in the mixture"; it also tries a share of one half for S.

Two choices of ours where paper and code differ. Span lengths are t5's random partitions, as in the code of the paper's
appendix, not normally distributed as in its text. And the S-denoiser predicts a quarter of the text in the mean, as in
the table (`PrefixLM(0.25)`: t5's mask with a beginning of at least half of the text), where that code leaves t5's half.
The spans are counted in tokens, whatever the vocabulary; the paper's are SentencePiece tokens of some four bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from t5xpg.data.objectives import PrefixLM, SpanCorruption
from t5xpg.named_tokens import NLG, NLU, S2S


@dataclass(frozen=True)
class Denoiser:
    """One setting: its name in names of tasks, the token in front of the inputs, and what is done with the text."""

    name: str
    mode: str
    objective: SpanCorruption | PrefixLM
    rate: float = 1.0  # its weight in the mixture: equal ones, of which S is one of seven


UL2: tuple[Denoiser, ...] = (
    Denoiser("r1", NLU, SpanCorruption(0.15, 3.0)),
    Denoiser("r2", NLU, SpanCorruption(0.15, 8.0)),
    Denoiser("s", S2S, PrefixLM(0.25)),
    Denoiser("x1", NLG, SpanCorruption(0.5, 3.0)),
    Denoiser("x2", NLG, SpanCorruption(0.5, 8.0)),
    Denoiser("x3", NLG, SpanCorruption(0.15, 64.0)),
    Denoiser("x4", NLG, SpanCorruption(0.5, 64.0)),
)
