"""Which tokens a forward pass is about: ids and mask among the model's inputs, beside what its routers saw.

Shapes: B samples, T tokens each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokenpaths.engine.adapters.recorder.routers.router_outputs import tensors_of
from tokenpaths.engine.adapters.recorder.user_model import BatchInfo
from tokenpaths.engine.base.errors import UserError

_ID_NAMES = ("input_ids", "tokens", "token_ids", "inputs", "idx", "x")
_MASK = "attention_mask"
_DECODER_IDS, _DECODER_MASK = "decoder_input_ids", "decoder_attention_mask"
_OF_DECODER = frozenset({_DECODER_IDS, _DECODER_MASK, "decoder_inputs_embeds"})
"""inputs that models with an encoder and a decoder have"""
_POSITIONS = "position_ids"
_BOUNDS = ("cu_seq_lens_q", "cu_seqlens_q", "cu_seq_lens", "cu_seqlens")
"""of texts that are packed behind each other without padding, as kernels of attention take them"""
_MASKED_BELOW = -1000.0
"""threshold of padding in an additive mask; −10,000 is common, and becomes −9,984 in bfloat16"""
PIECES = (
    "it received them in pieces, and a run needs all tokens of a pass at each step: give the model so few tokens at "
    "once that it does not divide them, or record the module that is called for each piece"
)
_SAY_WHICH = "say which it is with rec.batch(mask=…)"

Say = Callable[[str, str], None]
"""(kind, note): notes of one kind are said once in a recording"""


@dataclass(frozen=True)
class PassTokens:
    """The tokens of a forward pass."""

    shape: tuple[int, int]
    """samples, tokens per sample, padding included; rows are samples one after the other"""
    ids: Tensor | None
    """(B, T)"""
    mask: Tensor | None
    """(B, T) as given or found; read once it has been copied, so that no step waits for it"""
    compact: bool
    """True: the routers received only the tokens kept by the mask"""
    places: Tensor | None = None
    """what tells texts apart that are packed behind each other: positions (B, T), or where each begins (N + 1,) among
    the tokens of the pass"""


def tokens_of_pass(
    rows: int,
    info: BatchInfo,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    named: Mapping[str, Any],
    parameters: Collection[str],
    batch_first: bool,
    past: int | Tensor | None,
    say: Say,
    received: tuple[int, ...] = (),
    times: int = 1,
) -> PassTokens:
    """The tokens of a pass whose routers saw ``rows`` of them.

    Args:
        info: what the caller said of it.
        args, kwargs: inputs of the model.
        named: all of them by name.
        parameters: names of the inputs that the model can take.
        past: tokens before those of the pass, where a cache says it.
        say: receives notes on what could not be recorded.
        received: shape of what a router received, vectors on its last axis.
        times: how often a router was called.

    Raises:
        UserError: what the caller said has another type or shape, or the routers saw the tokens in another order or in
            pieces.
    """
    ids: Tensor | None
    mask: Tensor | None
    ids, found_mask = _found(rows, info, args, named, parameters, say)
    if info.input_ids is not None:
        ids = _given(info.input_ids, "input_ids", batch_first)
    elif ids is not None and not batch_first:
        ids = _turned(ids, received, say)
    if ids is not None and (ids.is_floating_point() or ids.dim() != 2):
        raise UserError(f"input_ids is {ids.dtype} {tuple(ids.shape)}, it should be integers (B, T)", field="input_ids")
    inputs = tensors_of([*args, *kwargs.values()])
    if info.mask is not None:
        mask = _given(info.mask, "mask", batch_first)
    else:
        mask = _oriented(_mask_of(found_mask, say), ids, inputs, batch_first)
    _check_order(rows, ids, mask, inputs, batch_first, received, times)
    shape, compact = _shape_of(rows, ids, mask, inputs, batch_first, say)
    if ids is not None and tuple(ids.shape) != shape:
        if info.input_ids is not None:
            raise UserError(
                f"input_ids has shape {tuple(ids.shape)}, but the routers saw {shape[0]} × {shape[1]} tokens",
                field="input_ids",
            )
        say(
            "ids do not fit",
            f"the input has {tuple(ids.shape)} ids, the routers saw {shape[0]} × {shape[1]} tokens: "
            "recorded without token ids",
        )
        ids = None
    places = _places_of(named, shape, batch_first)
    bounded = places is not None and places.dim() == 1
    if bounded and info.mask is None and mask is not None and tuple(mask.shape) != shape:
        mask = None  # of a cache that many texts share
    if mask is not None and tuple(mask.shape) != shape:
        if info.mask is not None:
            raise UserError(f"mask has shape {tuple(mask.shape)}, it should be {shape}", field="mask")
        mask = _last_columns(mask, shape, ids, inputs, batch_first, past, say)
    return PassTokens(shape, ids, mask, compact, places)


def _turned(ids: Tensor, received: tuple[int, ...], say: Say) -> Tensor:
    """Ids that were found among the inputs of a model that runs time first, as (B, T): they are (T, B), or (B, T) where
    the model turns them round inside."""
    samples, tokens = ids.shape
    if len(received) == 3 and received[:2] == (tokens, samples):
        if samples != tokens:
            return ids
        if samples > 1:
            say(
                "ids either way",
                f"a pass of {samples} × {samples} ids does not show which axis is time: the first was taken for it; "
                "say them with rec.batch(input_ids=…)",
            )
    return ids.T


def _check_order(
    rows: int,
    ids: Tensor | None,
    mask: Tensor | None,
    inputs: Sequence[Tensor],
    batch_first: bool,
    received: tuple[int, ...],
    times: int,
) -> None:
    """UserError where what the routers received is not all tokens of the pass in their order."""
    leading = received[:-1]
    # Vectors of another width are made into tokens inside the model, as many or fewer (patches).
    fitting = (t for t in inputs if t.is_floating_point() and t.dim() == 3 and t.shape[-1:] == received[-1:])
    vectors = next((tuple(t.shape[:2]) for t in fitting), ())
    shape = tuple(ids.shape) if ids is not None else vectors if batch_first else vectors[::-1]
    if not shape:
        return
    if batch_first and leading == shape[::-1] != shape and min(shape) > 1:
        raise UserError(
            f"the input is of {shape[0]} samples of {shape[1]} tokens, the routers received {leading[0]} × "
            f"{leading[1]}, time first: give batch_first=False",
            field="batch_first",
        )
    pieces, rest = divmod(shape[0] * shape[1], max(1, rows))
    if times > 1 and pieces > 1 and not rest and not times % pieces:
        keep = None if mask is None else kept_positions(mask)
        if isinstance(keep, Tensor) and int(keep.sum()) == rows:
            return  # the others are padding
        raise UserError(
            f"a router was called {times} times with {rows} tokens each, the pass has {shape[0] * shape[1]}: {PIECES}; "
            "if the model makes them fewer before its routers, give rec.batch(mask=…) of those that are left",
            field="routers",
        )


def _places_of(named: Mapping[str, Any], shape: tuple[int, int], batch_first: bool) -> Tensor | None:
    """What tells packed texts apart among the model's inputs: their bounds, or the positions of all tokens."""
    bounds = next((value for name in _BOUNDS if (value := _whole_numbers(named.get(name))) is not None), None)
    if bounds is not None and bounds.dim() == 1 and shape[0] == 1:
        return bounds
    positions = _whole_numbers(named.get(_POSITIONS))
    if positions is None or positions.dim() > 2:
        return None
    positions = positions[None] if positions.dim() == 1 else positions
    if not batch_first and tuple(positions.shape) != shape:
        positions = positions.T
    return positions if tuple(positions.shape) == shape else None


def _whole_numbers(value: Any) -> Tensor | None:
    if not isinstance(value, Tensor) or value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        return None
    return value


def packed_texts(places: Tensor | None, keep: np.ndarray, say: Say) -> list[np.ndarray] | None:
    """Kept tokens of each text of each row; None where a row is one text.

    Args:
        places: see ``PassTokens``, on the host.
        keep: (B, T) tokens that are no padding.
        say: receives notes.
    """
    if places is None:
        return None
    begins = np.zeros(keep.shape, dtype=bool)
    if places.dim() == 1:
        bounds = np.unique(places.numpy())
        if not len(bounds) or bounds[0] != 0 or bounds[-1] != keep.size:
            say(
                "bounds do not fit",
                f"the bounds of packed texts reach from {bounds[0] if len(bounds) else 0} to "
                f"{bounds[-1] if len(bounds) else 0}, the pass has {keep.size} tokens: each row was taken for one text",
            )
            return None
        begins.reshape(-1)[bounds[:-1]] = True
    else:
        positions = places.numpy()
        if (np.diff(positions, axis=1) == 1).all():
            return None  # the usual case, also of one token a row
        for row, kept in enumerate(keep):
            own = positions[row, kept]
            if len(own) > 1 and own[-1] == own[-2] == 0:
                return None  # padding that no mask tells of has position 0, and is no text a token
            goes_on, restarts = np.diff(own) == 1, own[1:] == 0
            if not (goes_on | restarts).all() and (np.diff(own) < 0).any():
                say(
                    "positions of another kind",
                    f"{_POSITIONS} go back within a row, but not to 0: each row was taken for one text",
                )
            # A row of a single token is one text, and says nothing of the others.
            if len(own) > 1 and (not goes_on.any() or not (goes_on | restarts).all()):
                return None
            begins[row, np.flatnonzero(kept)[1:][restarts]] = True
    begins[:, 0] = True
    text_BT = begins.cumsum(axis=1) - 1
    parts = [np.bincount(text_BT[row, kept]) for row, kept in enumerate(keep)]
    parts = [lengths[lengths > 0] for lengths in parts]
    return parts if any(len(lengths) > 1 for lengths in parts) else None


def _found(
    rows: int, info: BatchInfo, args: tuple[Any, ...], named: Mapping[str, Any], parameters: Collection[str], say: Say
) -> tuple[Tensor | None, Any]:
    """Ids and the mask that belong together among the model's inputs."""
    ids, mask = _find_ids(args, named), named.get(_MASK)
    has_decoder = any(name in parameters or named.get(name) is not None for name in _OF_DECODER)
    if not has_decoder:
        return ids, mask
    decoder_ids = named.get(_DECODER_IDS)
    decoder_ids = decoder_ids if isinstance(decoder_ids, Tensor) and decoder_ids.dim() == 2 else None
    if decoder_ids is not None and named.get("encoder_outputs") is not None:
        return decoder_ids, named.get(_DECODER_MASK)  # the encoder ran before
    if ids is not None and decoder_ids is not None and (ids.numel() == rows) != (decoder_ids.numel() == rows):
        return (ids, mask) if ids.numel() == rows else (decoder_ids, named.get(_DECODER_MASK))
    if info.input_ids is None or (info.mask is None and mask is not None):
        say(
            "encoder or decoder",
            "the model has an encoder and a decoder, and shapes do not tell whose tokens the routers saw: recorded "
            "without token ids, padding included; say which they are with rec.batch(input_ids=…, mask=…)",
        )
    return None, None


def _find_ids(args: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor | None:
    """The model's integer input (B, T): by name, else its first argument."""
    for value in (*(named.get(name) for name in _ID_NAMES), *args[:1]):
        if (
            isinstance(value, Tensor)
            and value.dim() in (1, 2)
            and not value.is_floating_point()
            and (value.dtype != torch.bool and not value.is_complex())
        ):
            return value[None] if value.dim() == 1 else value
    return None


def _given(values: Any, name: str, batch_first: bool) -> Tensor:
    """What the caller said, as (B, T) where it has two axes."""
    try:
        tensor = values if isinstance(values, Tensor) else torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(
            f"{name} is {type(values).__name__}, it should be a tensor or nested lists of equal length", field=name
        ) from None
    tensor = tensor[None] if tensor.dim() == 1 else tensor
    return tensor if batch_first or tensor.dim() != 2 else tensor.T


def _mask_of(mask: Any, say: Say) -> Tensor | None:
    """The model's mask with two axes; None, and a note, for another."""
    if isinstance(mask, Mapping):
        # One for each kind of layer, as transformers makes them for a cache of fixed size. A layer that looks at all
        # tokens has a column for each of them, one with a window need not.
        masks = [(isinstance(one, Tensor), "full" in str(kind), one) for kind, one in mask.items() if one is not None]
        mask = max(masks, key=lambda one: one[:2])[2] if masks else None
    if mask is None:
        return None
    if not isinstance(mask, Tensor):
        what = f"is {type(mask).__name__}"
    elif mask.dim() == 1:
        return mask[None]
    elif mask.dim() == 4 and mask.shape[1] == 1 and not mask.is_complex():  # as it is added to the scores of all heads
        looked_at = mask.amax(dim=2)[:, 0]  # padding is what no token looks at
        if not mask.is_floating_point():
            return looked_at
        # Told apart here, where the columns of all tokens are seen, and without waiting for a GPU. Zeros alone are
        # added to scores: a token looks at itself at least.
        zero, masked = looked_at == 0, looked_at <= _MASKED_BELOW
        is_added = (zero | masked).all() & (zero.all() | masked.any())
        return torch.where(is_added, zero.to(mask.dtype), looked_at)
    elif mask.dim() != 2:
        what = f"has shape {tuple(mask.shape)}"
    else:
        return mask
    say(
        "mask of another kind",
        f"the model's {_MASK} {what}, not (B, T): padding, if there is any, was recorded too: {_SAY_WHICH}",
    )
    return None


def _oriented(mask: Tensor | None, ids: Tensor | None, inputs: Sequence[Tensor], batch_first: bool) -> Tensor | None:
    """A mask that was found, as (B, T): most models that run time first are given it so, too."""
    if mask is None or batch_first:
        return mask
    samples = ids.shape[0] if ids is not None else _first_size(inputs, 1)
    return mask.T if mask.shape[0] != samples and mask.shape[1] == samples else mask


def _shape_of(
    rows: int, ids: Tensor | None, mask: Tensor | None, inputs: Sequence[Tensor], batch_first: bool, say: Say
) -> tuple[tuple[int, int], bool]:
    """Number of samples and of tokens per sample; whether padding was removed before the routers."""
    for tokens in (ids, mask):
        if tokens is None:
            continue
        if tokens.numel() == rows:
            return (tokens.shape[0], tokens.shape[1]), False
        if mask is not None and tokens.shape == mask.shape:
            keep = kept_positions(mask)
            if isinstance(keep, Tensor) and int(keep.sum()) == rows:
                return (tokens.shape[0], tokens.shape[1]), True
    size = ids.shape[0] if ids is not None else _first_size(inputs, 0 if batch_first else 1)
    if size < 1 or rows % size:
        size = 1
        say(
            "samples unknown",
            f"{rows} tokens cannot be shared among the samples of the input: each forward pass is one sample",
        )
    return (size, rows // size), False


def _last_columns(
    mask: Tensor,
    shape: tuple[int, int],
    ids: Tensor | None,
    inputs: Sequence[Tensor],
    batch_first: bool,
    past: int | Tensor | None,
    say: Say,
) -> Tensor | None:
    """The part of a mask that is about the tokens of a pass after others, whose keys and values a cache holds.

    None, and a note, where a mask does not fit otherwise.
    """
    samples, length = shape
    if isinstance(past, int) and mask.shape[0] == samples and mask.shape[1] >= past + length:
        return mask[:, past : past + length]  # a cache of fixed size has columns for tokens to come
    vectors = next((t.shape[:2] for t in inputs if t.is_floating_point() and t.dim() == 3), None)
    passed = ids.shape if ids is not None else vectors if vectors is None or batch_first else vectors[::-1]
    if mask.shape[0] == samples and mask.shape[1] > length and passed is not None and tuple(passed) == shape:
        say(
            "mask of a cache",
            f"the model's {_MASK} was longer than the tokens of a pass, as with a cache of earlier ones: its last "
            "columns were taken for theirs",
        )
        return mask[:, -length:]
    say(
        "mask does not fit",
        f"the model's {_MASK} of shape {tuple(mask.shape)} does not fit the {samples} × {length} tokens that the "
        f"routers saw: padding, if there is any, was recorded too: {_SAY_WHICH}",
    )
    return None


def _first_size(inputs: Sequence[Tensor], axis: int) -> int:
    """Length of ``axis`` of the first input with at least two axes; 1 without one."""
    first = next((t for t in inputs if t.dim() >= 2), None)
    return 1 if first is None else first.shape[axis]


def kept_positions(mask: Tensor) -> Tensor | str:
    """Mask of the tokens that are kept, or a message why it cannot be determined.

    Supported are booleans, 0 and 1 of any type, and additive masks: 0 keeps, very negative values do not.
    """
    if mask.dtype == torch.bool:
        return mask
    if mask.is_complex():
        return "it is complex"
    zero, one = mask == 0, mask == 1
    if bool((zero | one).all()):
        if mask.is_floating_point() and bool(zero.all()):
            return "it is a float mask of zeros, which would keep all if it is added to scores, and none if it is not"
        return one
    if mask.is_floating_point() and bool((zero | (mask <= _MASKED_BELOW)).all()):
        return zero
    return f"it holds values from {float(mask.min()):g} to {float(mask.max()):g}"


def read_mask(mask: Tensor, was_given: bool, say: Say) -> Tensor | None:
    """``kept_positions``; for a found mask that cannot be read, None and a note that all positions count.

    Raises:
        UserError: a mask given by the caller cannot be read.
    """
    keep = kept_positions(mask)
    if isinstance(keep, Tensor):
        return keep
    if was_given:
        raise UserError(f"mask cannot be read: {keep}; give booleans, or 1 for tokens and 0 for padding", field="mask")
    say(
        "mask unreadable",
        f"the model's {_MASK} cannot be read: {keep}; padding, if there is any, was recorded too: {_SAY_WHICH}",
    )
    return None
