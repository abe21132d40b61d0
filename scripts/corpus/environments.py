"""Which packages each producer needs, and the environments that hold them. Producers whose packages get along share one."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Producer:
    """`environment`: a name of ENVIRONMENTS; `packages`: whose versions the manifest names."""

    environment: str
    packages: tuple[str, ...]


EXPORTING = (
    "torch==2.13.0",
    "torchvision==0.28.0",
    "onnx==1.23.2",
    "onnxscript==0.7.2",
    "onnxruntime==1.31.1",
    "numpy==2.4.6",
    "sympy==1.14.0",
)
"""What exports a module of PyTorch, and runs the file."""
TORCH = (
    *EXPORTING,
    "transformers==5.23.0",
    "timm==1.0.31",
    "diffusers==0.42.1",
    "x-transformers==2.31.10",
    "vit-pytorch==1.26.11",
    "open_clip_torch==3.3.0",
    "onnxruntime-genai==0.18.0",
    "spox==0.18.2",
    "ndonnx==0.23.0",
)
ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "optimum": (
        "optimum-onnx[onnxruntime]==0.1.0",
        "optimum==2.1.0",
        "transformers==4.57.6",
        "torch==2.13.0",
        "onnx==1.23.2",
        "onnxruntime==1.32.0",
        "numpy==2.4.6",
    ),
    "torch": TORCH,
}
ENVIRONMENTS |= {
    "jax": (
        "jax2onnx==0.17.1",
        "jax==0.10.2",
        "jaxlib==0.10.2",
        "flax==0.12.8",
        "equinox==0.13.8",
        "onnx==1.23.2",
        "onnxscript==0.7.2",
        "onnxruntime==1.31.1",
        "numpy==2.4.6",
    ),
    "keras": (
        "keras==3.15.1",
        "keras-hub==0.32.0",
        "tensorflow-cpu==2.21.0",
        "tf2onnx==1.17.0",
        "jax2onnx==0.17.1",
        "torch==2.13.0",
        "jax==0.10.2",
        "jaxlib==0.10.2",
        "onnx==1.23.2",
        "onnxscript==0.7.2",
        "onnxruntime==1.31.1",
        "numpy==2.4.6",
    ),
}
ENVIRONMENTS |= {
    "research": (
        *EXPORTING,
        "segment-anything==1.0",
        "fair-esm==2.0.0",
        "monai==1.6.1",
        "local-attention==1.11.2",
        "perceiver-pytorch==0.11.0",
    ),
    "after_export": (
        *EXPORTING,
        "transformers==5.23.0",
        "onnxslim==0.1.98",
        "onnxsim==0.8.1",
        "onnxconverter-common==1.16.0",
    ),
    "detection_and_speech": (
        *EXPORTING,
        "onnxslim==0.1.98",
        "ultralytics==8.4.190",
        "openai-whisper==20250625",
        "torchaudio==2.11.0",
    ),
}
ENVIRONMENTS |= {
    "libraries": (
        *EXPORTING,
        "kornia==0.9.0",
        "python-doctr==1.1.0",
        "litgpt==0.5.13",
        "speechbrain==1.1.2",
        "torchaudio==2.11.0",
        "rtdl-revisiting-models==0.0.2",
        "tabpfn==9.2.0",
    ),
    "paddle": (
        "paddlepaddle==3.3.1",
        "paddle2onnx==2.1.0",
        "onnx-graphsurgeon==0.6.1",
        "onnx==1.17.0",
        "onnxruntime==1.31.1",
        "numpy==2.4.6",
        "sympy==1.14.0",
    ),
}
ENVIRONMENTS |= {
    "vision": (
        *EXPORTING,
        "transformers==5.23.0",
        "spandrel==0.4.2",
        "spandrel_extra_arches==0.2.0",
        "rfdetr==1.11.2",
        "segmentation-models-pytorch==0.6.0",
    ),
    "graphs_and_series": (
        *EXPORTING,
        "transformers==5.16.1",
        "gliner==0.2.29",
        "torch_geometric==2.8.1",
        "neuralforecast==3.3.0",
    ),
    "speech": (
        *EXPORTING,
        "torchaudio==2.11.0",
        "funasr==1.4.16",
        "transformers==5.23.0",
        "torch-complex==0.4.4",
        "typeguard==2.13.3",
        "configargparse==1.9.0",
        "humanfriendly==10.0",
        "sentencepiece==0.2.1",
        "jamo==0.4.1",
    ),
    "nemo": (*EXPORTING, "torchaudio==2.11.0", "nemo_toolkit[asr]==3.0.0"),
}
ENVIRONMENTS |= {"transformers": (*EXPORTING, "transformers==5.23.0", "timm==1.0.31", "scipy==1.17.1")}
ENVIRONMENTS |= {
    "music_and_items": (
        *EXPORTING,
        "einops==0.8.2",
        "scipy==1.17.1",
        "pandas==3.1.1",
        "scikit-learn==1.9.1",
        "tqdm==4.70.1",
        "PyYAML==6.0.4",
        "colorlog==6.12.0",
        "colorama==0.4.6",
    )
}
ENVIRONMENTS |= {
    "lucidrains": (
        *EXPORTING,
        "einops==0.8.2",
        "einops-exts==0.0.4",
        "torch-einops-utils==0.2.0",
        "scipy==1.17.1",
        "accelerate==1.15.0",
        "beartype==0.23.1",
        "tqdm==4.70.1",
    )
}
ENVIRONMENTS |= {
    "textbooks": (
        *EXPORTING,
        "timm==1.0.31",
        "einops==0.8.2",
        "fairscale==0.4.13",
        "catalogue==2.0.10",
        "tokenizers==0.23.3",
        "requests==2.34.2",
        "tqdm==4.70.1",
        "h5py==3.16.0",
    )
}
ENVIRONMENTS |= {
    "hooks": (
        *EXPORTING,
        "transformers==5.23.0",
        "datasets==5.2.0",
        "pandas==3.0.6",
        "accelerate==1.15.0",
        "rich==15.0.0",
        "wandb==0.31.0",
    )
}
ENVIRONMENTS |= {
    "molecules": (
        *EXPORTING,
        "transformers==5.24.0",
        "multimolecule==0.2.2",
        "chanfig==0.0.117",
        "danling==0.4.8",
        "torchmetrics==1.9.0",
        "datasets==5.2.0",
        "pandas==3.0.6",
    )
}
WITHOUT_DEPENDENCIES: dict[str, tuple[str, ...]] = {
    "music_and_items": ("demucs==4.1.0", "recbole==1.2.1", "coqui-tts==0.28.0", "torchaudio==2.11.0"),
    "lucidrains": (
        "bottleneck-transformer-pytorch==0.1.4",
        "denoising-diffusion-pytorch==2.3.4",
        "ema-pytorch==0.8.3",
        "egnn-pytorch==0.2.8",
        "g-mlp-pytorch==0.1.5",
        "halonet-pytorch==0.0.5",
        "memory-efficient-attention-pytorch==0.1.6",
        "performer-pytorch==1.1.4",
        "axial-positional-embedding==0.3.12",
        "local-attention==1.11.2",
        "hyper-connections==0.4.11",
        "point-transformer-pytorch==0.1.5",
        "soft-moe-pytorch==0.1.9",
        "tab-transformer-pytorch==0.6.1",
        "x-mlps-pytorch==0.6.9",
        "discrete-continuous-embed-readout==0.2.12",
        "vector-quantize-pytorch==1.32.0",
        "h-transformer-1d==0.1.9",
        "rotary-embedding-torch==0.9.1",
        "iTransformer==0.8.1",
        "gateloop-transformer==0.2.5",
        "linear-attention-transformer==0.19.1",
        "sinkhorn-transformer==0.11.4",
        "product-key-memory==0.3.0",
        "routing-transformer==1.6.1",
        "mixture-of-experts==0.2.3",
        "nystrom-attention==0.0.14",
        "linformer==0.2.3",
        "PaLM-pytorch==0.2.2",
        "MEGABYTE-pytorch==0.3.6",
        "flamingo-pytorch==0.1.2",
        "agent-attention-pytorch==0.1.7",
        "deformable-attention==0.0.20",
        "bidirectional-cross-attention==0.1.0",
        "uformer-pytorch==0.0.8",
        "conformer==0.3.2",
        "invariant-point-attention==0.2.2",
        "timesformer-pytorch==0.4.1",
        "stam-pytorch==0.0.4",
        "feedback-transformer-pytorch==0.0.11",
        "isab-pytorch==0.3.0",
        "axial-attention==0.6.1",
        "tranception-pytorch==0.0.8",
        "kronecker-attention-pytorch==0.0.6",
        "lambda-networks==0.4.0",
        "se3-transformer-pytorch==0.9.0",
        "reformer-pytorch==1.4.4",
        "native-sparse-attention-pytorch==0.2.3",
        "mixture-of-attention==0.0.25",
        "CoLT5-attention==0.11.2",
        "slot-attention==1.5.2",
        "compressive-transformer-pytorch==0.4.0",
        "mogrifier==0.0.5",
        "graph-transformer-pytorch==0.1.1",
        "video-diffusion-pytorch==0.7.0",
        "einx==0.4.3",
        "frozendict==2.5.1",
        "jaxtyping==0.3.11",
        "wadler-lindig==0.1.8",
        "loguru==0.7.3",
    ),
    "textbooks": (
        "labml-nn==0.5.1",
        "labml==0.5.3",
        "labml-helpers==0.4.89",
        "torchscale==0.3.0",
        "curated-transformers==2.0.1",
        "curated-tokenizers==2.0.1",
        "keras-cv-attention-models==1.4.3",
    ),
    "hooks": (
        "transformer-lens==2.16.1",
        "transformers-stream-generator==0.0.5",
        "better-abc==0.0.3",
        "fancy-einsum==0.0.3",
        "einops==0.8.2",
        "jaxtyping==0.3.11",
        "wadler-lindig==0.1.8",
        "beartype==0.23.1",
        "typeguard==4.6.1",
    ),
    "speech": ("espnet==202511", "espnet_onnx==0.2.1", "zipformer==0.1.3", "onnxconverter-common==1.16.0"),
}
"""Packages of an environment that ask for older releases of others than run their models: these are installed by themselves."""
PRODUCERS: dict[str, Producer] = {
    "optimum": Producer("optimum", ("optimum", "optimum-onnx", "transformers", "torch", "onnx")),
    "torchscript": Producer("torch", ("torch", "transformers", "onnx")),
    "ort_optimizer": Producer("torch", ("onnxruntime", "torch", "transformers", "onnx")),
    "onnx_functions": Producer("torch", ("onnx",)),
    **{
        f"keras_{backend}": Producer("keras", ("keras", "keras-hub", *packages, "onnx"))
        for backend, packages in (
            ("tensorflow", ("tensorflow-cpu", "tf2onnx")),
            ("jax", ("jax", "jax2onnx")),
            ("torch", ("torch",)),
        )
    },
    "tf2onnx": Producer("keras", ("tf2onnx", "tensorflow-cpu", "onnx")),
    "by_hand": Producer("torch", ("onnx", "onnxscript", "spox", "ndonnx")),
    "diffusers": Producer("torch", ("diffusers", "torch", "onnx")),
    "open_clip": Producer("torch", ("open_clip_torch", "torch", "onnx")),
    "timm": Producer("torch", ("timm", "torch", "onnx")),
    "vit_pytorch": Producer("torch", ("vit-pytorch", "torch", "onnx")),
    "x_transformers": Producer("torch", ("x-transformers", "torch", "onnx")),
    "transformer_lens": Producer("hooks", ("transformer-lens", "torch", "onnx")),
    "multimolecule": Producer("molecules", ("multimolecule", "transformers", "torch", "onnx")),
    "torchvision": Producer("torch", ("torchvision", "torch", "onnx")),
    "jax2onnx": Producer("jax", ("jax2onnx", "jax", "flax", "equinox", "onnx")),
    "genai_builder": Producer("torch", ("onnxruntime-genai", "torch", "transformers", "onnx")),
    "research": Producer(
        "research",
        ("segment-anything", "fair-esm", "monai", "local-attention", "perceiver-pytorch", "torch", "onnx"),
    ),
    "after_export": Producer(
        "after_export",
        ("onnxruntime", "onnxslim", "onnxsim", "onnxconverter-common", "transformers", "torch", "onnx"),
    ),
    "ultralytics": Producer("detection_and_speech", ("ultralytics", "onnxslim", "torch", "onnx")),
    "whisper": Producer("detection_and_speech", ("openai-whisper", "torch", "onnx")),
    "torchaudio": Producer("detection_and_speech", ("torchaudio", "torch", "onnx")),
    "kornia": Producer("libraries", ("kornia", "torch", "onnx")),
    "doctr": Producer("libraries", ("python-doctr", "torch", "onnx")),
    "litgpt": Producer("libraries", ("litgpt", "torch", "onnx")),
    "speechbrain": Producer("libraries", ("speechbrain", "torch", "onnx")),
    "tables": Producer("libraries", ("rtdl_revisiting_models", "tabpfn", "torch", "onnx")),
    "paddle": Producer("paddle", ("paddlepaddle", "paddle2onnx", "onnx")),
    "funasr": Producer("speech", ("funasr", "torch", "onnx")),
    "nemo": Producer("nemo", ("nemo-toolkit", "torch", "onnx")),
    "zipformer": Producer("speech", ("zipformer", "torch", "onnx")),
    "espnet": Producer("speech", ("espnet", "espnet_onnx", "torch", "onnx")),
    "ort_sessions": Producer("torch", ("onnxruntime", "torch", "transformers", "onnx")),
    "transformers_more": Producer("torch", ("transformers", "torch", "onnx")),
    "transformers_sound": Producer("transformers", ("transformers", "torch", "onnx")),
    "transformers_sight": Producer("transformers", ("transformers", "torch", "onnx")),
    "transformers_rare": Producer("transformers", ("transformers", "torch", "onnx")),
    "demucs": Producer("music_and_items", ("demucs", "torch", "onnx")),
    "lucidrains": Producer("lucidrains", ("denoising-diffusion-pytorch", "vector-quantize-pytorch", "torch", "onnx")),
    "lucidrains_more": Producer("lucidrains", ("linformer", "invariant-point-attention", "torch", "onnx")),
    "textbooks": Producer("textbooks", ("labml-nn", "torchscale", "curated-transformers", "torch", "onnx")),
    "kecam": Producer("textbooks", ("keras-cv-attention-models", "torch", "onnx")),
    "recbole": Producer("music_and_items", ("recbole", "torch", "onnx")),
    "coqui": Producer("music_and_items", ("coqui-tts", "torch", "onnx")),
    "autocast": Producer("torch", ("transformers", "torch", "onnx")),
    "spandrel": Producer("vision", ("spandrel", "spandrel_extra_arches", "torch", "onnx")),
    "rfdetr": Producer("vision", ("rfdetr", "transformers", "torch", "onnx")),
    "smp": Producer("vision", ("segmentation_models_pytorch", "torch", "onnx")),
    "gliner": Producer("graphs_and_series", ("gliner", "transformers", "torch", "onnx")),
    "pyg": Producer("graphs_and_series", ("torch-geometric", "torch", "onnx")),
    "neuralforecast": Producer("graphs_and_series", ("neuralforecast", "torch", "onnx")),
}


def python_of(environment: str, root: Path) -> Path:
    """The interpreter of an environment under `root`, which is made first if it is not there or its requirements have changed."""
    folder = root / environment
    requirements, alone = ENVIRONMENTS[environment], WITHOUT_DEPENDENCIES.get(environment, ())
    want = hashlib.sha256("\n".join((*requirements, *alone)).encode()).hexdigest()
    stamp = folder / "requirements.sha256"
    python = folder / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != want:
        print(f"making the environment {environment}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", os.fspath(folder)], check=True)
        install = [os.fspath(python), "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
        subprocess.run([*install, *requirements], check=True)
        if alone:
            subprocess.run([*install, "--no-deps", *alone], check=True)
        stamp.write_text(want)
    return python
