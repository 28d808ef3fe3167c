"""Samplers of llama.cpp."""

from __future__ import annotations

from typing import (
    Any,
    Dict,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    TypedDict,
    Union,
)


class Sampling(TypedDict, total=False):
    """Options of :meth:`Model.generate` for llama.cpp's samplers. ``None`` means off, or the value
    of the model's own settings."""

    #: Subtracted from the logit of a token each time it was generated.
    frequency_penalty: Optional[float]
    #: Last tokens of the prompt and the text that the penalties consider; 0 for none.
    repeat_last_n: Optional[int]
    #: Added to the logits of tokens, by id or by text; ``-math.inf`` bans one.
    logit_bias: Optional[Mapping[Union[int, str], float]]
    #: Probability that locally typical sampling keeps.
    typical_p: Optional[float]
    #: Version of Mirostat, 1 or 2, in place of top-k, top-p, min-p, typical and XTC sampling.
    mirostat: Optional[int]
    #: Target surprise in bits, 5 by default.
    mirostat_tau: Optional[float]
    #: Learning rate, 0.1 by default.
    mirostat_eta: Optional[float]
    #: DRY penalty for tokens that continue a repetition.
    dry_multiplier: Optional[float]
    #: Its base, 1.75 by default.
    dry_base: Optional[float]
    #: Length of a repetition from which it applies, 2 by default.
    dry_allowed_length: Optional[int]
    #: Last tokens that it considers, all by default.
    dry_penalty_last_n: Optional[int]
    #: Texts that end a repetition, by default those of llama.cpp.
    dry_sequence_breakers: Optional[Sequence[str]]
    #: Probability that XTC sampling excludes the likeliest tokens.
    xtc_probability: Optional[float]
    #: Probability from which it excludes a token, 0.1 by default.
    xtc_threshold: Optional[float]
    #: Whether the tokens that end a text are banned.
    ignore_eos: bool
    #: Minimum number of tokens.
    min_tokens: Optional[int]


def sampling_of(given: Sampling) -> Dict[str, Any]:
    """Returns the value of every option; raises for unknown names."""
    asked: Dict[str, Any] = dict.fromkeys(Sampling.__annotations__)
    for name, value in given.items():
        if name not in asked:
            raise TypeError(f"got an unexpected keyword argument {name!r}")
        asked[name] = value
    if asked["mirostat"] not in (None, 1, 2):
        raise ValueError(f"mirostat is 1 or 2, not {asked['mirostat']!r}")
    owners = [
        ("mirostat", ["mirostat_tau", "mirostat_eta"]),
        ("xtc_probability", ["xtc_threshold"]),
        (
            "dry_multiplier",
            ["dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"],
        ),
    ]
    for owner, names in owners:
        for name in names:
            if asked[owner] is None and asked[name] is not None:
                raise ValueError(f"{name} needs {owner}")
    biases: List[Tuple[Optional[int], str, float]] = []
    for token, bias in (asked["logit_bias"] or {}).items():
        is_text = isinstance(token, str)
        biases.append((None if is_text else token, token if is_text else "", bias))
    asked["logit_bias"] = biases
    asked["ignore_eos"] = bool(asked["ignore_eos"])
    breakers = asked["dry_sequence_breakers"]
    asked["dry_sequence_breakers"] = None if breakers is None else list(breakers)
    return asked
