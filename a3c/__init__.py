"""A3C (Mnih et al. 2016): one algorithm in a few rooms; the README shows what is where."""

__version__ = "2.0.0"
