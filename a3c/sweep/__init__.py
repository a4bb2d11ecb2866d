"""Many runs: what a sweep asks for, its trials and their results. TensorFlow is not loaded here."""
