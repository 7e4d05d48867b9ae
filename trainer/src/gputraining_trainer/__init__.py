"""Distributed PyTorch trainer that reports its progress over HTTP."""

__version__ = "0.1.0"
