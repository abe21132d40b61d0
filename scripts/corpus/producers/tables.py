"""Transformers for rows of tables: FT-Transformer of rtdl, TabPFN in its versions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from corpus.case import Case
from corpus.torch_export import BOTH, Call, Module, cases_of

WIDTH, HEADS, LAYERS = 48, 4, 2
TRAINING = 12
"""Rows of TabPFN's tables whose labels are known."""


def ft_transformer(**options: Any) -> Any:
    """The numbers and the kinds of a row are tokens."""
    from rtdl_revisiting_models import FTTransformer

    made = FTTransformer(
        n_cont_features=5,
        cat_cardinalities=[64, 64],
        d_out=3,
        n_blocks=LAYERS,
        d_block=WIDTH,
        attention_n_heads=HEADS,
        attention_dropout=0.0,
        ffn_d_hidden=None,
        ffn_d_hidden_multiplier=4 / 3,
        ffn_dropout=0.0,
        residual_dropout=0.0,
        **options,
    )
    return Call(made, lambda model, numbers, kinds: model(numbers, kinds))


def tabpfn(version: str) -> Any:
    """The architecture of a version: rows attend to rows and features to features, and test rows only to those with labels."""
    import importlib

    module = importlib.import_module(f"tabpfn.architectures.tabpfn_{version}")
    name = {"v2": "TabPFNV2", "v2_5": "TabPFNV2p5"}[version]
    options: dict[str, Any] = {"nlayers": LAYERS, "emsize": WIDTH, "nhead": HEADS}
    more = {} if version == "v2" else {"task_type": "multiclass"}
    config = getattr(module, f"{name}Config")(max_num_classes=10, num_buckets=10, **options)
    made = getattr(module, name)(config=config, n_out=10, **more)
    return Call(made, lambda model, rows, labels: model(rows, labels.remainder(3).float()))


def cases() -> Iterator[Case]:
    row = {"numbers": (2, 5), "kinds": (2, 2)}
    kinds = {"kinds": torch.int64}
    fewer = {"linformer_kv_compression_ratio": 0.5, "linformer_kv_compression_sharing": "headwise"}
    modules = [
        Module("ft-transformer", ft_transformer, row, types=kinds, exporters=BOTH),
        Module("ft-transformer-fewer-keys", partial(ft_transformer, **fewer), row, types=kinds, exporters=BOTH),
    ]
    modules += [
        Module(
            f"tabpfn-{version.replace('_', '.')}",
            partial(tabpfn, version),
            {"rows": (TRAINING + 5, 2, 6), "labels": (TRAINING, 2)},
            types={"labels": torch.int64},
            axes={"rows": {}},
        )
        for version in ("v2", "v2_5")
    ]
    return cases_of(modules)
