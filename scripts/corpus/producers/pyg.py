"""PyTorch Geometric: attention among all nodes of each graph, pooling by attention, and softmaxes over the edges of a node."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any

import torch

from corpus.case import Case
from corpus.torch_export import BOTH, Call, Module, cases_of

WIDTH, HEADS, NODES = 48, 4, 20


def layer(name: str, options: dict[str, Any]) -> Any:
    """A convolution whose softmax is over the edges that end in a node."""
    made = getattr(import_module("torch_geometric.nn"), name)(WIDTH, 12, heads=HEADS, **options)
    return Call(made, lambda m, x, edges: m(x, edges.remainder(NODES)))


def gps(norm: str) -> Any:
    """GraphGPS: a convolution beside attention among all nodes of a graph, of which there are two."""
    from torch_geometric.nn import GCNConv, GPSConv

    made = GPSConv(WIDTH, GCNConv(WIDTH, WIDTH), heads=HEADS, norm=norm)
    return Call(made, lambda m, x, edges: m(x, edges.remainder(NODES), torch.arange(2).repeat_interleave(NODES // 2)))


def aggregation(name: str, options: dict[str, Any]) -> Any:
    """Attention among the nodes of a graph, and from seeds to them."""
    made = getattr(import_module("torch_geometric.nn.aggr"), name)(WIDTH, **options)
    return Call(made, lambda m, x: m(x, torch.arange(2).repeat_interleave(NODES // 2), dim_size=2))


def dense() -> Any:
    from torch_geometric.nn import DenseGATConv

    return DenseGATConv(WIDTH, 12, heads=HEADS)


def block(name: str, *options: Any) -> Any:
    return getattr(import_module("torch_geometric.nn.aggr.utils"), name)(*options)


def whole(name: str, options: dict[str, Any]) -> Any:
    """A model of attention among all nodes, linear in their number."""
    made = getattr(import_module("torch_geometric.nn.models"), name)(WIDTH, 32, 8, **options)
    return Call(made, lambda m, x, edges: m(x, edges.remainder(NODES), torch.zeros(NODES, dtype=torch.long)))


def cases() -> Iterator[Case]:
    x = {"x": (NODES, WIDTH)}
    graph = x | {"edges": (2, 30)}
    kinds = {"edges": torch.int64}
    axes = {"x": {}, "edges": {1: "edge_count"}}
    by_edges = "a softmax over the edges of each node"
    modules = [
        Module(name.lower(), partial(layer, name, options), graph, 0, by_edges, types=kinds, axes=axes, exporters=BOTH)
        for name, options in (("TransformerConv", {}), ("GATConv", {}), ("GATv2Conv", {}), ("SuperGATConv", {}))
    ]
    modules += [
        Module(f"gps-{norm}", partial(gps, norm), graph, types=kinds, axes=axes, exporters=BOTH)
        for norm in ("batch_norm", "layer_norm")
    ]
    pools: tuple[tuple[str, dict[str, Any]], ...] = (
        ("SetTransformerAggregation", {"num_seed_points": 2, "heads": HEADS, "layer_norm": True}),
        ("GraphMultisetTransformer", {"k": 3, "heads": HEADS}),
    )
    modules += [
        Module(name.lower(), partial(aggregation, name, options), x, axes={"x": {}}, exporters=BOTH)
        for name, options in pools
    ]
    padded = {"x": (2, 9, WIDTH), "mask": (2, 9)}
    dense_graph = {"x": (2, 9, WIDTH), "adjacency": (2, 9, 9)}
    modules += [
        Module(
            f"block-{name.lower()}",
            partial(block, name, *options),
            padded,
            types={"mask": torch.bool},
            axes={key: {0: "batch", 1: "nodes"} for key in padded},
            exporters=BOTH,
        )
        for name, options in (
            ("SetAttentionBlock", (WIDTH, HEADS)),
            ("InducedSetAttentionBlock", (WIDTH, 5, HEADS)),
            ("PoolingByMultiheadAttention", (WIDTH, 3, HEADS)),
        )
    ]
    modules += [
        Module("dense-gat", dense, dense_graph, 0, "scores are a sum of two numbers, no product", exporters=BOTH),
        Module("sgformer", partial(whole, "SGFormer", {}), graph, 0, "its attention is linear", types=kinds, axes=axes),
        Module(
            "polynormer", partial(whole, "Polynormer", {}), graph, 0, "its attention is linear", types=kinds, axes=axes
        ),
    ]
    return cases_of(modules)
