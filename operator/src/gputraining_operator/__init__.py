"""Kubernetes operator that turns a GpuTraining into a running PyTorchJob and reports its progress."""

__version__ = "0.1.0"
