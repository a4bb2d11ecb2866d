"""A3C (Mnih et al. 2016): one algorithm in a few rooms; the README shows what is where."""
