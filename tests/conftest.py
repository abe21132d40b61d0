"""What holds in every test: one thread in the libraries that compute references, cores of its own for each of several processes,
no state of torch left behind, few walks of the garbage collector, and nothing compiled twice; that long files come first; and what
`--whole` adds: cases of long lists with the mark `whole`, which run too where they are asked for by name (`::` or `-k`) or mark
(`-m`)."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# Read when NumPy's BLAS and torch are loaded. Their threads would wait, spinning, for the cores that the other tests use, and how
# many there are must not decide what a reference is.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def _keep_to_own_cores() -> None:
    """Each of pytest-xdist's processes, and what it starts, has its share of the cores. The compiler and the runtimes start a
    thread for every core that they may use: those of several processes would spend much of their time waiting for each other.
    Processes beyond the number of cores go anywhere: they use the time in which the others wait."""
    worker, count = os.environ.get("PYTEST_XDIST_WORKER", ""), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if worker.startswith("gw") and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        if int(worker[2:]) < len(cores):
            os.sched_setaffinity(0, cores[int(worker[2:]) :: count])


_keep_to_own_cores()

LONG = (
    "triton_kernel amx_body stock_road vector_kernel zoo convolutions cluster families verify tune integer_convolutions "
    "integer_products bits_product parameters generate shared_steps dot_body gpu cli attention_bench group_norm_rows "
    "node_tests resize_planes export opsets tune_triton no_keys backend strided indexed_products docs linear_attention ring "
    "sequence_conv channels_last bench relative_values shuffled package ablation window_pads shapes suites campaign bf16 "
    "kernel iree_bugs winograd linear_report projections free_sizes byte_ops match_ops refused_ops triton_linear_attention "
    "devices linear grid_sample few_kernel faults calls cpu_linear match spelling_table integer_weights casts weighted "
    "broadcasts packed_rows in_place narrow_weights match_score joined_products kv_passes top_k match_layout group_norms "
    "quantized sequences_last cpu_linear_words conv_epilogues packing detection norm caller_thread pads linear_numbers "
    "resize_known recurrent constant_sites channel_norm pools testing attention_sweep bodies random_attention deep_graphs "
    "known_operands spirv expands random_programs excuses triton_persistent"
).split()
"""Files that take more than six seconds of a processor, the longest first: one that begins last would run
alone. The bodies of AMX and of products of bytes take theirs where a processor has the instructions."""


ALL = "*"
"""In THINNED: all tests of a file that write files."""
THINNED = {
    "benchmark/test_ablation.py": {"test_without_an_optimisation_results_are_right": 3},
    "campaign/test_excuses.py": {
        "test_a_difference_of_softmaxes_is_a_difference_of_products": 3,
        "test_a_reading_excuses_no_other_row": 2,
    },
    "cli/test_linear_report.py": {"test_where_tiles_are_from": 2},
    "derive/test_chain.py": {"test_every_step_is_the_same_number": 2},
    "generate/test_generate.py": {"test_tokens_are_those_of_onnxruntime": 12},
    "graph/test_damaged_files.py": {"test_damaged_models_are_handled_or_refused": 5},
    "iree/test_bits_fused.py": {"test_numbers": 2},
    "iree/test_bodies.py": {"test_bodies": 3},
    "iree/test_channels_last.py": {"test_compiled": 3},
    "iree/test_constant_sites.py": {"test_they_compile_for_gpus": 4},
    "iree/test_conv_epilogues.py": {"test_compiled": 6},
    "iree/test_convolutions.py": {
        "test_vectors_of_eight_lanes": 2,
        "test_sums_of_halves_are_rounded_once": 2,
        "test_channels_last_compiled": 4,
    },
    "iree/test_dequantize.py": {"test_compiled": 3},
    "iree/test_devices.py": {"test_parts_on_their_devices": 2},
    "iree/test_einsums.py": {"test_rows_by_a_weight_are_a_product": 6},
    "iree/test_filled.py": {"test_filled_vectors_are_hidden_where_calls_branch": 2},
    "iree/test_gathered_experts.py": {"test_compiled": 2},
    "iree/test_grid_sample.py": {"test_places_outside_of_the_image": 2},
    "iree/test_group_norm_rows.py": {"test_numbers": 2},
    "iree/test_group_norms.py": {"test_numbers": 2},
    "iree/test_integer_convolutions.py": {"test_compiled": 4, "test_compiled_for_avx2": 2},
    "iree/test_integer_products.py": {"test_numbers": 6, "test_numbers_for_avx2": 2},
    "iree/test_integer_weights.py": {"test_numbers": 6, "test_scales_of_columns": 2},
    "iree/test_iree_bugs.py": {ALL: 3},
    "iree/test_linear_attention.py": {"test_rotation_by_three_streams": 2},
    "iree/test_linear_numbers.py": {"test_bf16": 2, "test_numbers": 2},
    "iree/test_narrow_weights.py": {"test_stored_weights": 4, "test_models_of_f16": 4},
    "iree/test_node_tests.py": {"test_compiled": 14},
    "iree/test_opsets.py": {"test_exports_of_old_opsets": 2, "test_they_compute_what_they_did": 2},
    "iree/test_packed_rows.py": {"test_every_batch_is_right": 2},
    "iree/test_pads.py": {"test_compiled": 2, "test_reflected_images": 2, "test_reflected_sounds": 2},
    "iree/test_parameters.py": {"test_every_type_comes_out_as_it_went_in": 3},
    "iree/test_pools.py": {"test_maxima_back_at_their_places": 2},
    "iree/test_powers.py": {"test_exponents_of_the_run": 2, "test_small_powers": 2},
    "iree/test_projections.py": {"test_attention_reads_the_product": 3},
    "iree/test_random_programs.py": {"test_program": 2},
    "iree/test_recurrent.py": {"test_directions_and_lengths": 5, "test_activations": 2},
    "iree/test_resize_sequence.py": {"test_a_sequence_is_an_image_of_one_row": 2},
    "iree/test_sequence_conv.py": {"test_results_are_those_of_the_conv": 3},
    "iree/test_slice_sizes.py": {"test_a_run_is_right_or_stops": 3},
    "iree/test_stock_road.py": {
        "test_exported_models": 2,
        "test_other_compiler_flags": 2,
        "test_sites_of_each_kind": 5,
        "test_lengths_known_at_run_time": 2,
    },
    "iree/test_strided.py": {"test_bounds": 5, "test_one_column": 2},
    "iree/test_top_k.py": {"test_numbers": 2, "test_opsets": 2, "test_rows_drawn_at_random": 2},
    "iree/test_unsigned.py": {"test_elements_in_wider_numbers": 3},
    "iree/test_windows.py": {"test_compiled": 2},
    "kernels/test_amx_body.py": {"test_case": 3},
    "kernels/test_bits_product.py": {"test_products": 4, "test_sums_of_the_largest_numbers": 2},
    "kernels/test_cpu_linear.py": {
        "test_bytes": 2,
        "test_numbers": 4,
        "test_rows_of_pairs": 2,
        "test_pairs": 2,
        "test_code_of_bytes": 2,
    },
    "kernels/test_cpu_linear_ahead.py": {"test_numbers": 2, "test_what_is_fetched": 2},
    "kernels/test_cpu_linear_parts.py": {"test_numbers": 2, "test_words": 2, "test_random": 2, "test_code": 2},
    "kernels/test_cpu_linear_staged.py": {"test_numbers": 2},
    "kernels/test_cpu_linear_words.py": {"test_numbers": 2, "test_code": 2},
    "kernels/test_dot_body.py": {"test_case": 3},
    "kernels/test_few_kernel.py": {"test_case": 4},
    "kernels/test_gpu.py": {"test_text_computes_attention": 4, "test_matrix_instructions": 2},
    "kernels/test_linear.py": {"test_modules": 2},
    "kernels/test_no_keys.py": {"test_bodies_without_keys": 3},
    "kernels/test_norm.py": {"test_modules": 2},
    "kernels/test_parts_by_cores.py": {"test_any_number_of_parts_gives_the_reference": 2},
    "kernels/test_rows_kernel.py": {"test_it_is_the_reference": 3},
    "kernels/test_spirv.py": {"test_numbers_on_lavapipe": 5},
    "kernels/test_split_keys.py": {"test_split": 3},
    "kernels/test_triton_reciprocals.py": {"test_compiles": 2},
    "kernels/test_triton_stored.py": {"test_nothing_is_copied": 2},
    "match/test_distribute.py": {"test_exported": 2},
    "match/test_dropped.py": {"test_every_row_is_the_models": 2},
    "match/test_gathered.py": {"test_compiled": 3},
    "match/test_gqa_caches.py": {"test_cache_of_integers": 2, "test_cache_of_a_window": 2},
    "match/test_keys_in_parts.py": {"test_parts_are_the_whole": 2},
    "match/test_match.py": {"test_each_axis": 4},
    "match/test_match_layout.py": {"test_each_layout_is_matched_and_keeps_its_result": 6},
    "match/test_match_mask.py": {"test_mask_is_understood_and_exact": 3},
    "match/test_match_ops.py": {
        "test_onnxruntime_op": 3,
        "test_container": 3,
        "test_against_the_reference_evaluator": 3,
    },
    "match/test_match_score.py": {"test_every_form_equals_the_original": 4},
    "match/test_mixed.py": {"test_equals_the_original": 4},
    "match/test_quantised_graphs.py": {"test_drawn": 2},
    "match/test_quantized.py": {"test_found_and_written_back": 2},
    "match/test_relative_values.py": {"test_masks": 2, "test_fixed_sizes": 2},
    "match/test_rotary.py": {"test_compiles_to_the_same": 3},
    "match/test_shared.py": {"test_compiled": 2},
    "match/test_shown_probabilities.py": {"test_one_site_and_the_probabilities": 2},
    "match/test_spelling_table.py": {"test_spelling": 4},
    "tests/test_export.py": {"test_every_site_is_found_and_stays_the_same": 3},
    "tuning/test_tune_linear.py": {
        "test_types_in_fewer_bits": 2,
        "test_the_compilers_product_is_one_of_the_candidates": 2,
    },
}
"""Tests of many like cases that are compiled or run, of which every run tries one in so many, and `--whole` all."""

GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it, without their whole numbers, are spread evenly however many lie between two: of lists that alternate between
two targets, or two types, both stay, where each second case would be of one."""


def _leave_out_like_cases(items: list[pytest.Item]) -> None:
    met = dict[tuple[object, str], int]()
    for item in items:
        name, _, case = item.name.partition("[")
        lists = THINNED.get("/".join(item.path.parts[-2:]), {})
        if ALL in lists and "tmp_path" in getattr(item, "fixturenames", ()):
            name = case = ALL
        every = lists.get(name)
        if case and every:
            place = met[item.path, name] = met.get((item.path, name), -1) + 1
            if place * GOLDEN % 1 >= 1 / every:
                item.add_marker(pytest.mark.whole)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="try all of long lists, of which every run tries a part")


def pytest_configure(config: pytest.Config) -> None:
    """The process that starts all others makes the folder of what they compile, and removes it."""
    if hasattr(config, "workerinput"):
        return
    from tests.support.compiled_once import FOLDER_ENV

    folder = tempfile.TemporaryDirectory(prefix="onnx_fa-")
    os.environ[FOLDER_ENV] = folder.name
    config.add_cleanup(folder.cleanup)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    option = config.option
    _leave_out_like_cases(items)
    if not (option.whole or option.keyword or option.markexpr or any("::" in arg for arg in config.args)):
        left_out = [item for item in items if item.get_closest_marker("whole")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("whole")]
    places = {f"test_{name}.py": place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


def pytest_collection_finish() -> None:
    """What has been imported stays to the end. With torch, that is a million objects, and an eighth of the time of an export is
    spent walking over them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _torch_state() -> dict[str, object]:
    """The settings of torch that change what it computes; nothing where it is not loaded."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    return {
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
        "grad": torch.is_grad_enabled(),
        "matmul": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "fast transformers": torch.backends.mha.get_fastpath_enabled(),
    }


@pytest.fixture(autouse=True)
def torch_state_stays() -> Iterator[None]:
    """Fails a test that leaves torch computing in another way: those after it in the same process would depend on it."""
    before = _torch_state()
    yield
    if before:
        assert _torch_state() == before


@pytest.fixture(scope="session", autouse=True)
def nothing_is_compiled_twice() -> Iterator[None]:
    """One in ten of what the tests of a process ask the compiler for it has made before, and other processes have made some."""
    from tests.support.compiled_once import FOLDER_ENV, compiled_once

    with compiled_once(Path(os.environ[FOLDER_ENV])):
        yield
