"""neuralforecast: forecasts of time series by Transformers, over patches, over series, or by the most telling queries alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import torch

from corpus.case import Case
from corpus.torch_export import BOTH, Call, Module, cases_of

AHEAD, BEHIND, SERIES = 6, 24, 5
OPTIONS: dict[str, Any] = {"h": AHEAD, "input_size": BEHIND, "max_steps": 1}


def forecaster(name: str, exogenous: bool, options: dict[str, Any]) -> Any:
    """A model and its call; `exogenous`: with a second series that is known ahead, and one that is not."""
    models = import_module("neuralforecast.models")
    more = {"futr_exog_list": ["ahead"]} | ({"hist_exog_list": ["behind"]} if name == "TFT" else {})
    made = getattr(models, name)(**OPTIONS, **options, **(more if exogenous else {}))
    return Call(made, forecast)


def forecast(model: Any, series: torch.Tensor, ahead: Any = None, behind: Any = None) -> Any:
    batch = {"insample_y": series, "futr_exog": ahead, "hist_exog": behind, "stat_exog": None}
    return model(batch | {"insample_mask": torch.ones_like(series)})


def cases() -> Iterator[Case]:
    one, many = {"series": (2, BEHIND, 1)}, {"series": (2, BEHIND, SERIES)}
    ahead, behind = {"ahead": (2, BEHIND + AHEAD, 1)}, {"behind": (2, BEHIND, 1)}
    small = {"hidden_size": 16, "n_head": 4, "dropout": 0.0}
    patches: dict[str, Any] = {"hidden_size": 16, "n_heads": 4, "encoder_layers": 2, "linear_hidden_size": 16}
    patches |= {"patch_len": 6, "stride": 4}
    series: dict[str, Any] = {"n_series": SERIES, "hidden_size": 16, "n_heads": 4, "e_layers": 2, "d_ff": 16}
    listed: tuple[tuple[str, str, dict[str, Any], dict[str, tuple[int, ...]]], ...] = (
        ("patchtst", "PatchTST", patches, one),
        ("patchtst-residual", "PatchTST", patches | {"res_attention": True}, one),
        ("itransformer", "iTransformer", series, many),
        ("vanilla", "VanillaTransformer", small, one),
        ("vanilla-ahead", "VanillaTransformer", small, one | ahead),
        ("informer", "Informer", small | {"factor": 1}, one),
        ("tft", "TFT", {"hidden_size": 16, "n_head": 4}, one),
        ("tft-ahead", "TFT", {"hidden_size": 16, "n_head": 2}, one | ahead | behind),
        ("timexer", "TimeXer", series | {"patch_len": 6}, many),
        ("autoformer", "Autoformer", small, one),
        ("softs", "SOFTS", {"n_series": SERIES, "hidden_size": 16, "d_core": 8, "d_ff": 16}, many),
    )
    counts: dict[str, tuple[int, str]] = {
        "autoformer": (0, "of lags, no product"),
        "softs": (0, "a pooling by its own values, no product"),
        "tft": (1, "the other softmaxes weigh variables"),
        "tft-ahead": (1, "the other softmaxes weigh variables"),
    }
    modules = [
        Module(
            name,
            partial(forecaster, model, "ahead" in inputs, options),
            inputs,
            *counts.get(name, (None, "")),
            exporters=BOTH,
        )
        for name, model, options, inputs in listed
    ]
    fixed = [
        replace(module, name=f"{module.name}-fixed", axes={"series": {}})
        for module in modules
        if "patchtst" in module.name
    ]
    return cases_of(modules + fixed)
