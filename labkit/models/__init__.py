"""Model and GPU facts: shapes in, bytes a token, parameters and FLOPs out."""

from labkit.models.catalogue import get_model, model_names
from labkit.models.gpus import GPUSpec, get_gpu
from labkit.models.spec import ModelSpec

__all__ = ["GPUSpec", "ModelSpec", "get_gpu", "get_model", "model_names"]
