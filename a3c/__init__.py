"""A3C (Mnih et al. 2016): one algorithm in one flat package; the README shows what is where."""

import os

# TensorFlow reads this once, when it is loaded; its start-up chatter would bury our own lines.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
