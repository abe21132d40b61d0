"""RecBole: recommenders that read a user's items in their order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any

import torch

from corpus.case import Case
from corpus.feeds import Run
from corpus.torch_export import BOTH, Call, Module, cases_of
from corpus.torch_setup import stand_in_for

LENGTH, ITEMS = 9, 64
stand_in_for("torch.utils.tensorboard", "thop", "texttable", "psutil", "tabulate", "ray")  # train, log and count
SIZES = {
    "n_layers": 2,
    "n_heads": 4,
    "hidden_size": 48,
    "inner_size": 64,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}
SIZES |= {"hidden_dropout_prob": 0.0, "attn_dropout_prob": 0.0, "initializer_range": 0.02, "loss_type": "CE"}
SIZES |= {"mask_ratio": 0.2, "transform": "mask_itemseq", "ft_ratio": 0.5, "MASK_ITEM_SEQ": "masked"}
FIELDS = {"USER_ID_FIELD": "user", "ITEM_ID_FIELD": "item", "LIST_SUFFIX": "_list", "ITEM_LIST_LENGTH_FIELD": "length"}
FIELDS |= {"NEG_PREFIX": "neg_", "MAX_ITEM_LIST_LENGTH": LENGTH, "device": "cpu"}


class Items:
    """In the place of a data set: how many items there are."""

    def num(self, field: str) -> int:
        return ITEMS


def recommender(module: str, name: str) -> Any:
    config = defaultdict(lambda: None, SIZES | FIELDS)
    made = getattr(import_module(f"recbole.model.sequential_recommender.{module}"), name)(config, Items())
    if name == "BERT4Rec":
        return Call(made, lambda m, ids: m(ids))
    return Call(made, lambda m, ids, lengths: m(ids, lengths.clamp(1, LENGTH)))


def cases() -> Iterator[Case]:
    ids, lengths = {"ids": (2, LENGTH)}, {"lengths": (2,)}
    whole = {"ids": torch.int64, "lengths": torch.int64}
    listed: list[tuple[str, str, dict[str, tuple[int, ...]]]] = [
        ("sasrec", "SASRec", ids | lengths),
        ("bert4rec", "BERT4Rec", ids),
    ]
    return cases_of(
        Module(
            module,
            partial(recommender, module, name),
            inputs,
            types=whole,
            exporters=BOTH,
            runs=(Run("inputs"), Run("one", batch=1)),
        )
        for module, name, inputs in listed
    )
